"""Sees every call of a torch function while the user's model runs, and decides what happens to it.

A call on data is proven by the table of `separation`, and its result is marked (`proof`). A call in which a
trainable weight meets data is swapped for a stand-in of the same value, which leaves a record in the backward
(`swapping`). A call on weights alone makes a *derived* weight, such as a standardised one, which is followed
as a weight is. A call that cannot be followed is refused by name.
"""

import contextlib
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from adamas._nests import named_tensors
from adamas.engines.bookkeeping.arguments import looked_at, tensors_in, without_counts
from adamas.engines.bookkeeping.bodies import WRITTEN_OUT, seen_body
from adamas.engines.bookkeeping.counts import (
    check_reads,
    counted_len,
    forget_reads,
    refused_by_torch,
    user_line,
)
from adamas.engines.bookkeeping.customs import follow
from adamas.engines.bookkeeping.graph import check_graph, seen_functions
from adamas.engines.bookkeeping.places import Place
from adamas.engines.bookkeeping.proof import Prover
from adamas.engines.bookkeeping.questions import (
    GRAD,
    HARMLESS,
    HOOKS,
    READS,
    SHAPES,
    SHORTCUTS,
    STRIDES,
    function_name,
    works_in_place,
)
from adamas.engines.bookkeeping.separation import (
    CONSTANT,
    IN_PLACE,
    MAKES,
    MARK,
    PACKED_SIZES,
    TABLE,
    TAKES_COUNTS,
    Mark,
)
from adamas.engines.bookkeeping.swapping import used, weights_alone
from adamas.engines.bookkeeping.unseen import Below, Unseen, check_modules, in_sight, own_refusal
from adamas.engines.bookkeeping.uses.recurrent import FUSED_RNNS, pack, packed_rnn, pad
from adamas.errors import UnsupportedError
from adamas.geometry import Geometry

_ARANGE = torch.arange
_DIFFERENTIATES = {torch.autograd.grad, torch.autograd.backward}


class Recorder(Prover):
    """A mode of torch that follows the forward and the backward of one step, call by call.

    Args: see `Tracker`.
    """

    def __init__(
        self,
        names: dict[Tensor, str],
        n: int,
        geometry: Geometry,
        constants: "dict[int, weakref.ref[Tensor]] | None" = None,
    ) -> None:
        super().__init__(names, n, geometry, constants)
        self._depth: int | None = None  # calls that are being followed, in a first run
        self._inside: list[Any] = []  # functions that are followed through their own body at the moment

    def losses(self, loss: Any, model: Any, batch: Any, *, watched: bool = False) -> Any:
        """Computes the losses of a batch whose tensors were started.

        Args:
            loss: One loss per example.
            model: The model.
            batch: The batch.
            watched: Whether to look below the functions of Python, too, for computation that is not seen.

        Raises:
            Unseen: A tensor is unknown, and only a watched run can tell whether it is a constant.
        """
        with contextlib.ExitStack() as stack:
            if watched:
                check_modules(model)
                self._depth = 0
                inputs = [x for _, x in named_tensors(batch)]
                self.below = stack.enter_context(Below(inputs, lambda: bool(self._depth)))
                stack.enter_context(own_refusal(self.below))
            stack.enter_context(self.watching())
            losses = loss(model, batch)
            check_reads()
            self.below, self._depth = None, None
        if self.met_unknown:
            raise Unseen
        if isinstance(losses, Tensor) and losses.requires_grad:
            mark = self.mark(losses)
            if mark is not None and mark.why is not None:
                self.refuse_mixing(mark.why)
            place = None if mark is None else mark.place
            if losses.dim() == 1 and (
                place is None
                or place.outer * place.inner != 1
                or (place.rows is not None and place.rows.chosen)
            ):
                self.refuse_mixing("the losses are not one for each example")
        return losses

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Follows all calls, including those that no mode of torch sees."""
        forget_reads()
        with (
            refused_by_torch(),
            counted_len(self.length, self._arange),
            seen_functions(self.custom),
            in_sight(),
            self,
        ):
            yield

    # --- the backward ---------------------------------------------------------------------------------

    def backward(self, losses: Tensor) -> None:
        """Differentiates with the recorder active, since checkpoints run forwards again."""
        check_graph(losses, self.names, self.anchor, self.is_data, self.customs)
        before = [p.grad for p in self.names]
        self.in_backward = True
        try:
            for p in self.names:
                p.grad = None
            ones = torch.ones_like(losses)
            with self.watching():
                torch.autograd.graph._engine_run_backward(
                    (losses,),
                    (ones,),
                    False,
                    False,
                    (),
                    allow_unreachable=True,
                    accumulate_grad=True,
                )
            leaks = [name for p, name in self.names.items() if p.grad is not None]
        finally:
            for p, gradient in zip(self.names, before, strict=True):
                p.grad = gradient
        if leaks:  # a gradient reached a parameter on a path without a record
            raise UnsupportedError(
                f"engine='bookkeeping' cannot follow the parameter {leaks[0]!r} to the loss. Use "
                "engine='vmap' or engine='loop'."
            )

    # --- interception ---------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._depth is None:
            return self._called(func, args, kwargs or {})
        self._depth += 1
        try:
            return self._called(func, args, kwargs or {})
        finally:
            self._depth -= 1

    def _called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in SHAPES and args:
            if MARK not in args[0].__dict__:
                self._check_known(args[0])
            return SHAPES[func](self.shape(args[0]), args, kwargs)
        if func in HARMLESS or (self.in_backward and func == GRAD):
            return func(*args, **kwargs)
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise UnsupportedError(
                f"The forward uses a transform of torch.func, such as vmap ({user_line()}), in which the "
                "engine cannot tell the examples apart. Write it with batched functions, or use "
                "engine='loop'."
            )
        tensors, counted = looked_at(args, kwargs)
        check_reads(sys._getframe(2) if counted else None)
        with_data = any(map(self.is_data, tensors))
        name = function_name(func)
        weights = torch.is_grad_enabled() and any(id(t) in self.tracked for t in tensors)
        if func in HOOKS and (with_data or weights):
            raise UnsupportedError(
                f"The forward takes hold of a gradient ({name}, {user_line()}): a hook that changes it may "
                "mix the examples. Remove the hook, or use engine='loop'."
            )
        if self.below is not None:
            self._check_memory(tensors)
        if not with_data and not counted:
            if weights:
                return weights_alone(self, func, args, kwargs)
            result = func(*args, **kwargs)
            if func in MAKES and isinstance(result, Tensor):
                self.set_mark(result, Mark(self.unit, None, made=True))
            else:
                for t in tensors_in(result):
                    if not any(t is given for given in tensors):  # those are the user's
                        t.__dict__.setdefault(MARK, CONSTANT)
            return result
        if counted and func not in TAKES_COUNTS:
            if func in IN_PLACE or works_in_place(name) or kwargs.get("out") is not None:
                self.refuse_mixing(f"{name} writes what depends on the number of examples ({user_line()})")
            result = func(*without_counts(args), **without_counts(kwargs))
            why = f"{name} computes with the number of examples ({user_line()})"
            for t in tensors_in(result):
                self.set_mark(t, Mark(self.unit, None, why))
            return result
        self._check_saving()
        if func is Tensor.__int__ and self._is_packed_size(args[0]):
            return func(*args)
        if func is torch._nested_tensor_from_mask_left_aligned:
            return False  # asks only whether a shortcut applies
        if func is Tensor.__bool__ and sys._getframe(2).f_globals.get("__name__") in SHORTCUTS:
            return False
        if weights:
            return used(self, func, name, args, kwargs, tensors, with_data)
        if func in _PLAIN and kwargs.get("out") is None:
            return self._proven(func, name, args, kwargs, tensors, counted)
        if func is torch._pack_padded_sequence:
            return pack(self, *args)
        if func is torch._pad_packed_sequence:
            return pad(self, *without_counts(args))
        if func in _DIFFERENTIATES:
            # A saliency, or a re-entrant checkpoint within the backward, whose custom functions are followed.
            followed = self.customs if self.in_backward else ()
            for t in tensors_in((args[:1], kwargs.get("outputs"), kwargs.get("tensors"))):
                check_graph(t, None, self.anchor, self.is_data, followed)
        if func in IN_PLACE:
            return self.write(func, name, args, kwargs)
        if works_in_place(name) and func not in TABLE:
            self.refuse_mixing(
                f"{name} is not known to keep the examples apart when it writes in place ({user_line()})"
            )
        body = seen_body(func) if func in WRITTEN_OUT or func not in TABLE else None
        if body is not None and func not in self._inside:
            self._inside.append(func)
            try:
                with self:
                    return body(*args, **kwargs)
            finally:
                self._inside.remove(func)
        if "out" in kwargs and kwargs["out"] is not None:
            self.refuse_mixing(f"{name} writes to out= ({user_line()})")
        if func in FUSED_RNNS and not isinstance(args[3], bool):
            return packed_rnn(self, FUSED_RNNS[func], *args)
        if func in READS and not (func in STRIDES and _tells_no_length(args[0], self.place(args[0]))):
            self._refuse_read(name)
        if func in STRIDES:
            return func(*args, **kwargs)
        return self._proven(func, name, args, kwargs, tensors, counted)

    def _proven(
        self,
        func: Any,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        counted: bool,
    ) -> Any:
        """Makes a call on data, and finds where the examples are in its result."""
        plain = (without_counts(args), without_counts(kwargs)) if counted else (args, kwargs)
        result = func(*plain[0], **plain[1])
        if not isinstance(result, Tensor) and not tensors_in(result):
            if func is Tensor.type:
                return result
            self._refuse_read(name)
        self.prove(func, name, args, kwargs, result, tensors)
        return result

    def _arange(self, *args: Any, **kwargs: Any) -> Any:
        """Numbers the examples: `torch.arange` of a `Count`."""
        with torch._C.DisableTorchFunction():
            return self._called(_ARANGE, args, kwargs)

    def _check_memory(self, tensors: list[Tensor]) -> None:
        """Raises, in a first run, if a tensor without a mark shares its memory with data."""
        assert self.below is not None
        for t in tensors:
            if id(t) not in self.tracked and self.mark(t) is None and self.below.holds(t):
                self.refuse_mixing(
                    f"data of the batch became a tensor where the engine cannot see it ({user_line()})"
                )

    def _check_saving(self) -> None:
        """Raises if hooks change the tensors saved for the backward, such as compressed activations."""
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        if hooks is not None and not getattr(hooks[0], "__module__", "").startswith("torch."):
            raise UnsupportedError(
                f"The forward saves its tensors through hooks of its own ({user_line()}), which may mix the "
                "examples in the backward. Remove saved_tensors_hooks, or use engine='loop'."
            )

    def custom(self, function: Any, args: tuple[Any, ...], result: Any) -> None:
        """Follows a custom autograd function; see `customs.follow`."""
        with torch._C.DisableTorchFunction():
            follow(self, function, args, result)

    def _refuse_read(self, name: str) -> None:
        raise UnsupportedError(
            f"The forward reads values of the batch with {name} ({user_line()}), so that one example can "
            "change the others' gradients, which clipping does not bound. Use tensor functions such as "
            "torch.where, or engine='loop'."
        )

    def _is_packed_size(self, t: Tensor) -> bool:
        mark = self.mark(t)
        return mark is not None and mark.why == PACKED_SIZES


def _tells_no_length(t: Tensor, place: Place) -> bool:
    """Tells whether the strides of a tensor are the same for any number of examples."""
    return place.axis == 0 and t.is_contiguous() and t.storage_offset() == 0


# Functions of the table whose rule is the only check that they need.
_PLAIN: set[Any] = {
    func
    for func in TABLE
    if func not in IN_PLACE and func not in WRITTEN_OUT and func not in READS and func not in FUSED_RNNS
    if not works_in_place(function_name(func))
} - {*_DIFFERENTIATES, torch._pack_padded_sequence, torch._pad_packed_sequence}
