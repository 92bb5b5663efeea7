"""Follows weights and data through a model's forward, by function, and records what each weight took part in.

A `TorchFunctionMode` sees every call of a torch function while the user's model runs. Each call on data is
looked up in the table of `separation`. A call in which a trainable weight meets data is
replaced by one of `functions` with the same value, which leaves a record in the backward. A
call on weights alone makes a *derived* weight (a standardised or normalised one), which is followed like the
others. Whatever else a weight takes part in goes through one general path (`general`). What
cannot be followed is refused by name.
"""

import contextlib
import functools
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from adamas._nests import named_tensors
from adamas.engines.bookkeeping import uses
from adamas.engines.bookkeeping.counts import (
    Count,
    check_reads,
    counted_len,
    forget_reads,
    refuse_count,
    user_line,
)
from adamas.engines.bookkeeping.graph import check_graph, seen_functions
from adamas.engines.bookkeeping.places import Place
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
from adamas.engines.bookkeeping.tracking import (
    HARMLESS,
    SHAPES,
    WRITTEN_OUT,
    Tracker,
    looked_at,
    seen_body,
    tensors_in,
    without_counts,
)
from adamas.engines.bookkeeping.unseen import Below, Unseen, check_modules, in_sight
from adamas.engines.bookkeeping.uses import bound
from adamas.errors import UnsupportedError
from adamas.geometry import Geometry

_ELEMENTWISE = {
    *("add", "sub", "mul", "div", "true_divide", "rsub", "where", "maximum", "minimum", "lerp", "addcmul"),
    *("pow", "multiply", "subtract", "divide", "__add__", "__radd__", "__sub__", "__rsub__", "__mul__"),
    *("__rmul__", "__truediv__", "__rtruediv__", "__rdiv__", "__pow__", "__rpow__"),
}
# Modules that ask only whether a shortcut applies, such as no mask where no token is masked. The answer is
# no, which never depends on the batch and gives the same result.
_SHORTCUTS = {"transformers.masking_utils"}
_IN_PLACE: dict[str, Any] = {
    **{f"{name}_": getattr(torch, name) for name in ("add", "sub", "mul", "div", "lerp", "addcmul")},
    **{"__iadd__": torch.add, "__isub__": torch.sub, "__imul__": torch.mul},
    **{"__itruediv__": torch.div, "__idiv__": torch.div},
}
_IN_PLACE_OPERATORS = {
    *(
        "__iadd__",
        "__isub__",
        "__imul__",
        "__idiv__",
        "__itruediv__",
        "__ifloordiv__",
        "__imod__",
        "__ipow__",
    ),
    *("__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__", "__imatmul__", "__setitem__"),
}
_MATMULS = {"matmul", "__matmul__", "mm"}
_EXPANSIONS = {"expand", "expand_as", "broadcast_to", "repeat"}
_FUSED_RNNS: dict[Any, str] = {
    torch.lstm: "lstm",
    torch.gru: "gru",
    torch.rnn_tanh: "rnn_tanh",
    torch.rnn_relu: "rnn_relu",
}
_RNN_CELLS: dict[Any, str] = {
    torch.lstm_cell: "lstm",
    torch.gru_cell: "gru",
    torch.rnn_tanh_cell: "rnn_tanh",
    torch.rnn_relu_cell: "rnn_relu",
}
_GRAD = Tensor.grad.__get__  # type: ignore[union-attr]
_GRAD_FN = Tensor.grad_fn.__get__  # type: ignore[union-attr]
_ARANGE = torch.arange
_HOOKS = (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook, _GRAD_FN)


class Recorder(Tracker):
    """Active while the model runs: proves, swaps calls, and differentiates."""

    def __init__(
        self,
        names: dict[Tensor, str],
        n: int,
        geometry: Geometry,
        constants: "dict[int, weakref.ref[Tensor]] | None" = None,
    ) -> None:
        super().__init__(names, n, geometry, constants)
        self.customs: set[int] = set()  # nodes of the graph whose backward is looked at
        self._depth: int | None = None  # calls that are being followed, in a first run
        self._inside: list[Any] = []  # functions that are followed through their own body at the moment

    def losses(self, loss: Any, model: Any, batch: Any, *, watched: bool = False) -> Any:
        """Computes the losses of a batch whose tensors were started.

        Args:
            loss: One loss per example.
            model: The model.
            batch: The batch.
            watched: Look below the functions of Python, too, for what is not seen.

        Raises:
            Unseen: Only a run that is watched can tell whether a tensor is a constant.
        """
        with contextlib.ExitStack() as stack:
            if watched:
                check_modules(model)
                self._depth = 0
                inputs = [x for _, x in named_tensors(batch)]
                self.below = stack.enter_context(Below(inputs, lambda: bool(self._depth)))
                stack.enter_context(_own_refusal(self.below))
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
        """Follows all calls, and what no mode of torch sees."""
        forget_reads()
        with (
            _refused_by_torch(),
            counted_len(self.length, self._arange),
            seen_functions(self.custom),
            in_sight(),
            self,
        ):
            yield

    # --- the backward ---------------------------------------------------------------------------------

    def backward(self, losses: Tensor) -> None:
        """Differentiates, with the recorder active (checkpointing runs forwards again meanwhile)."""
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
        if leaks:  # a gradient came to a parameter on a path that left no record
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
        if func in HARMLESS or (self.in_backward and func == _GRAD):
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
        name = _name(func)
        weights = torch.is_grad_enabled() and any(id(t) in self.tracked for t in tensors)
        if func in _HOOKS and (with_data or weights):
            raise UnsupportedError(
                f"The forward takes hold of a gradient ({name}, {user_line()}): a hook that changes it may "
                "mix the examples. Remove the hook, or use engine='loop'."
            )
        if self.below is not None:
            self._check_memory(tensors)
        if not with_data and not counted:
            if weights:
                return self._weights_alone(func, name, args, kwargs)
            result = func(*args, **kwargs)
            if func in MAKES and isinstance(result, Tensor):
                self.set_mark(result, Mark(self.unit, None, made=True))
            else:
                for t in tensors_in(result):
                    if not any(t is given for given in tensors):  # which is the user's
                        t.__dict__.setdefault(MARK, CONSTANT)
            return result
        if counted and func not in TAKES_COUNTS:
            if func in IN_PLACE or _works_in_place(name) or kwargs.get("out") is not None:
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
            return False  # only a shortcut, too
        if func is Tensor.__bool__ and sys._getframe(2).f_globals.get("__name__") in _SHORTCUTS:
            return False
        if weights:
            return self._used(func, name, args, kwargs, tensors, with_data)
        if func in _PLAIN and kwargs.get("out") is None:
            return self._proven(func, name, args, kwargs, tensors, counted)
        if func is torch._pack_padded_sequence:
            return uses.pack(self, *args)
        if func is torch._pad_packed_sequence:
            return uses.pad(self, *without_counts(args))
        if func is torch.autograd.grad or func is torch.autograd.backward:
            # Of a saliency, or of a re-entrant checkpoint within the backward, whose functions are looked at.
            followed = self.customs if self.in_backward else ()
            for t in tensors_in((args[:1], kwargs.get("outputs"), kwargs.get("tensors"))):
                check_graph(t, None, self.anchor, self.is_data, followed)
        if func in IN_PLACE:
            return self.write(func, name, args, kwargs)
        if _works_in_place(name) and func not in TABLE:
            self.refuse_mixing(f"{name} is not known to keep the examples apart in place ({user_line()})")
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
        if func in _FUSED_RNNS and not isinstance(args[3], bool):
            return uses.packed_rnn(self, _FUSED_RNNS[func], *args)
        if func in _READS and not (func in _STRIDES and _tells_no_length(args[0], self.place(args[0]))):
            self._refuse_read(name)
        if func in _STRIDES:
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
        """Makes a call on data, and finds where the examples are in what it returns."""
        plain = (without_counts(args), without_counts(kwargs)) if counted else (args, kwargs)
        result = func(*plain[0], **plain[1])
        if not isinstance(result, Tensor) and not tensors_in(result):
            if func is Tensor.type:
                return result
            self._refuse_read(name)
        self.prove(func, name, args, kwargs, result, tensors)
        return result

    def _arange(self, *args: Any, **kwargs: Any) -> Any:
        """Makes the numbers of the examples."""
        with torch._C.DisableTorchFunction():
            return self._called(_ARANGE, args, kwargs)

    def _check_memory(self, tensors: list[Tensor]) -> None:
        """Raises, in a first run, if a tensor without a mark shares its memory with data."""
        assert self.below is not None
        for t in tensors:
            if id(t) not in self.tracked and self.mark(t) is None and self.below.holds(t):
                self.refuse_mixing(f"data of the batch was made into a tensor unseen ({user_line()})")

    def _check_saving(self) -> None:
        """Raises if hooks change what the backward will find, such as a compression of activations."""
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        if hooks is not None and not getattr(hooks[0], "__module__", "").startswith("torch."):
            raise UnsupportedError(
                f"The forward saves its tensors through hooks of its own ({user_line()}), which may mix the "
                "examples in the backward. Remove saved_tensors_hooks, or use engine='loop'."
            )

    def custom(self, function: Any, args: tuple[Any, ...], result: Any) -> None:
        """Follows a custom autograd function: its forward was seen, its backward will be looked at.

        The gradients of its outputs are marked as the outputs are, and those that it returns must have their
        examples where the inputs have theirs.
        """
        with torch._C.DisableTorchFunction():
            self._follow(function, args, result)

    def _follow(self, function: Any, args: tuple[Any, ...], result: Any) -> None:
        inputs, outputs = tensors_in(args), tensors_in(result)
        if not torch.is_grad_enabled() or not any(t.requires_grad for t in outputs):
            return
        if not any(map(self.is_data, inputs)):
            for t in outputs:
                if t.requires_grad:
                    self.tracked[id(t)] = t
            return
        marks = [self.mark(t) for t in args if isinstance(t, Tensor)]
        own = self.mark(result) if isinstance(result, Tensor) else None
        if (
            own is None
            or own.place is None
            or any(map(self.is_tracked, inputs))
            or len(marks) != len(inputs)
            or any(m is not None and m.why is not None for m in marks)
        ):
            return  # refused when the graph is looked at
        name = function.__qualname__

        def before(gradients: tuple[Tensor | None, ...]) -> None:
            self.in_custom = True
            for g in gradients:
                if g is not None:
                    self.set_mark(g, own)

        def after(gradients: tuple[Tensor | None, ...], _: Any) -> None:
            self.in_custom = False
            if len(gradients) != len(marks):
                self.refuse_mixing(f"the backward of {name} is not proven")
            for g, mark in zip(gradients, marks, strict=True):
                found = None if g is None else self.mark(g)
                if g is not None and mark is not None and (found is None or found.place != mark.place):
                    why = (
                        found.why if found is not None and found.why else "its gradients are at another place"
                    )
                    self.refuse_mixing(f"the backward of {name} is not proven: {why}")

        node = result.grad_fn
        assert node is not None
        node.register_prehook(before)
        node.register_hook(after)
        self.customs.add(id(node))

    def _refuse_read(self, name: str) -> None:
        raise UnsupportedError(
            f"The forward reads values of the batch with {name} ({user_line()}), so that one example can "
            "change the course of the others, which no clipping bounds. Use tensor functions such as "
            "torch.where, or engine='loop'."
        )

    def _weights_alone(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of weights and constants: autograd keeps it, and its uses are followed."""
        result = func(*args, **kwargs)
        given = tensors_in((args, kwargs))
        for t in (*tensors_in(result), *tensors_in(args[:1])):
            if t.requires_grad:
                self.tracked[id(t)] = t
            elif not any(t is one for one in given):  # which is the user's
                t.__dict__.setdefault(MARK, CONSTANT)
        return result

    def _used(
        self,
        func: Any,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        with_data: bool,
    ) -> Any:
        """A call in which a weight meets data, or a number of examples."""
        if func in WRITTEN_OUT:
            body = seen_body(func)
            assert body is not None
            with self:
                return body(*args, **kwargs)
        if not with_data:
            if name in _EXPANSIONS and self.is_tracked(args[0]):
                return uses.expanded(self, func, name, args, kwargs)
            self.refuse_mixing(f"{name} computes with the number of examples ({user_line()})")
        if func in _FUSED_RNNS and not isinstance(args[3], bool):
            return uses.packed_rnn(self, _FUSED_RNNS[func], *args)
        marks = [self.mark(t) for t in tensors if self.is_data(t)]
        mixed = next((mark for mark in marks if mark is not None and mark.why is not None), None)
        if mixed is not None:  # refused if it comes to the losses
            result = func(*args, **kwargs)
            for t in tensors_in(result):
                self.set_mark(t, mixed)
            return result
        plain = _IN_PLACE.get(name)
        if plain is not None and self.is_data(args[0]):
            with self:
                out = plain(args[0].clone(), *args[1:], **kwargs)
                return args[0].copy_(out)
        if _works_in_place(name):
            raise UnsupportedError(
                f"{self.names_in(args, kwargs)} takes part in {name}, which works in place. Use the "
                "function that returns a new tensor."
            )
        result = self._swapped(func, name, args, kwargs)
        if isinstance(result, Tensor) and not self._is_marked(result):
            self.prove(func, name, args, kwargs, result, tensors)
        return result

    def _is_marked(self, t: Tensor) -> bool:
        mark = t.__dict__.get(MARK)
        return mark is not None and mark.owner is self.unit

    def _swapped(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is F.linear:
            x, w, b = bound(("input", "weight", "bias"), args, kwargs)
            if self.clean(x, w, b):
                return uses.linear(self, x, w, b)
        elif name in _MATMULS and not kwargs and self._is_matrix(args[1]) and self.clean(*args):
            return uses.linear(self, args[0], args[1], None, transposed=True)
        elif (
            name == "addmm"
            and not kwargs
            and args[0].shape == args[2].shape[1:]
            and self.clean(args[1], args[2], args[0])
        ):
            return uses.linear(self, args[1], args[2], args[0], transposed=True)
        elif func in uses.CONVOLUTIONS:
            return uses.convolution(self, func, args, kwargs)
        elif func is F.embedding:
            return uses.embedding(self, func, args, kwargs)
        elif func is F.layer_norm:
            x, shape, w, b, eps = bound(("input", "normalized_shape", "weight", "bias", "eps"), args, kwargs)
            if self.clean(x, w, b):
                return uses.layer_norm(self, x, list(shape), w, b, 1e-5 if eps is None else eps)
        elif func is F.group_norm:
            x, groups, w, b, eps = bound(("input", "num_groups", "weight", "bias", "eps"), args, kwargs)
            if self.clean(x, w, b):
                return uses.group_norm(self, x, groups, w, b, 1e-5 if eps is None else eps)
        elif func is F.instance_norm:
            names = (
                "input",
                "running_mean",
                "running_var",
                "weight",
                "bias",
                "use_input_stats",
                "momentum",
                "eps",
            )
            x, mean, _, w, b, own, _, eps = bound(names, args, kwargs)
            if mean is None and own is not False and self.clean(x, w, b):
                return uses.group_norm(self, x, x.shape[1], w, b, 1e-5 if eps is None else eps)
        elif func is F.rms_norm:
            x, shape, w, eps = bound(("input", "normalized_shape", "weight", "eps"), args, kwargs)
            if self.clean(x, w):
                with self:
                    return F.rms_norm(x, shape, None, eps) * w
        elif func is F.batch_norm:
            return uses.batch_norm(self, args, kwargs)
        elif name == "prelu":
            x, w = bound(("input", "weight"), args, kwargs)
            with self:
                slope = w.view(1, -1, *[1] * (x.dim() - 2)) if w.numel() > 1 else w
                return torch.where(x > 0, x, x * slope)
        elif func in _RNN_CELLS:
            return uses.rnn_cell(self, _RNN_CELLS[func], *args)
        elif func in _FUSED_RNNS:
            return uses.rnn(self, _FUSED_RNNS[func], *args)
        elif func is F.scaled_dot_product_attention and self._learned_mask(args, kwargs):
            return uses.attention(self, args, kwargs)
        elif name in _ELEMENTWISE:
            return uses.elementwise(self, func, args, kwargs)
        return uses.general(self, func, args, kwargs)

    def _learned_mask(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
        others = [*args[:3], *(kwargs.get(key) for key in ("query", "key", "value"))]
        return self.is_tracked(mask) and not any(map(self.is_tracked, others))

    def _is_packed_size(self, t: Tensor) -> bool:
        mark = self.mark(t)
        return mark is not None and mark.why == PACKED_SIZES

    def _is_matrix(self, t: Any) -> bool:
        return self.is_tracked(t) and t.dim() == 2


@contextlib.contextmanager
def _refused_by_torch() -> Iterator[None]:
    """Refuses what torch itself refuses: a number of examples where it wants a plain number."""
    try:
        yield
    except (TypeError, RuntimeError) as error:
        if Count.__name__ not in str(error):
            raise
        refuse_count(f"computes with the number of examples ({str(error).splitlines()[0]})")


@contextlib.contextmanager
def _own_refusal(below: Below) -> Iterator[None]:
    """Raises what was refused below, whatever TorchScript makes of it."""
    try:
        yield
    except RuntimeError as error:
        if below.refusal is None:
            raise
        raise below.refusal from error


def _tells_no_length(t: Tensor, place: Place) -> bool:
    """Tells whether the strides of a tensor are the same for any number of examples."""
    return place.axis == 0 and t.is_contiguous() and t.storage_offset() == 0


def _works_in_place(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE_OPERATORS


@functools.lru_cache(maxsize=4096)
def _name(func: Any) -> str:
    name = getattr(func, "__name__", str(func))
    return func.__self__.__name__ if name == "__get__" else name


_STRIDES = {Tensor.stride, Tensor.storage_offset}  # which tell the number of examples if they are not first
_READS: set[Any] = {
    *_STRIDES,
    *(Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__bool__, Tensor.__int__, Tensor.__float__),
    *(Tensor.__index__, Tensor.__array__, Tensor.__contains__, Tensor.__repr__, Tensor.__complex__),
    *(Tensor.__format__, Tensor.is_nonzero, torch.is_nonzero, torch.equal, Tensor.equal, torch.allclose),
    *(Tensor.allclose, Tensor.untyped_storage, Tensor.storage, Tensor.data_ptr, Tensor.__dlpack__),
    *(Tensor.backward, Tensor.__reduce_ex__, Tensor.__deepcopy__, Tensor.share_memory_),
}

# Functions of the table that need no other look than their rule.
_PLAIN: set[Any] = {
    func
    for func in TABLE
    if func not in IN_PLACE and func not in WRITTEN_OUT and func not in _READS and func not in _FUSED_RNNS
    if not _works_in_place(_name(func))
} - {torch.autograd.grad, torch.autograd.backward, torch._pack_padded_sequence, torch._pad_packed_sequence}
