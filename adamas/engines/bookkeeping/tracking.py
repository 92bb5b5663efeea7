"""Which tensors of a running model are weights, which are data, and where the examples are in the data.

Every call of a torch function is looked up in the table of `separation`, in every step. What a
call returns carries a mark: the place of its examples, or the reason why they are mixed. Mixed values may be
computed (a logged average); they may not reach a weight, the losses, or anything that outlives the step.
"""

import sys
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from adamas.engines.bookkeeping.counts import Count, Shape, Unit, user_line
from adamas.engines.bookkeeping.places import FIRST, Place, Rows
from adamas.engines.bookkeeping.records import Record
from adamas.engines.bookkeeping.separation import (
    CONSTANT,
    CUTS,
    IN_PLACE,
    INDEXING,
    KEEPS_VALUES,
    MARK,
    PACKED_SIZES,
    READS_NO_VALUES,
    TABLE,
    TAKES_MIXED,
    Call,
    Mark,
    Mixing,
    Picks,
)
from adamas.engines.bookkeeping.unseen import Below, Unseen
from adamas.engines.leaves import refuse_leaf
from adamas.errors import UnsupportedError
from adamas.geometry import Geometry

_OWN = str(Path(__file__).parents[2])

# Parts of torch that compare the shapes of gradients and of what was computed again.
_PLAIN_SIZES = {torch.autograd.__file__, torch.utils.checkpoint.__file__}

# Questions about a tensor whose answers are the same for every batch.
HARMLESS: set[Any] = {
    *(Tensor.dim, Tensor.ndimension, Tensor.is_floating_point, Tensor.is_complex, Tensor.element_size),
    *(Tensor.get_device, Tensor.is_contiguous, Tensor.is_signed, Tensor.is_inference),
    *(torch.is_floating_point, torch.is_complex, torch.is_tensor, torch.is_signed, torch.is_inference),
    *(Tensor.__hash__, torch.result_type),
    *(torch.get_device, Tensor.is_shared, Tensor.is_pinned, torch.numel),
}
for _name in [
    "dtype",
    "device",
    "ndim",
    "layout",
    "requires_grad",
    "is_leaf",
    "is_cuda",
    "is_cpu",
    "is_sparse",
    "is_sparse_csr",
    "is_quantized",
    "is_meta",
    "is_mkldnn",
    "is_nested",
    "is_mps",
    "is_xpu",
    "is_xla",
    "is_ipu",
    "is_vulkan",
    "is_maia",
    "is_mtia",
    "names",
    "itemsize",
    "_version",
    "output_nr",
    "is_hpu",
    "retains_grad",
]:
    if hasattr(Tensor, _name):
        HARMLESS.add(getattr(Tensor, _name).__get__)
HARMLESS.add(Tensor.requires_grad.__set__)  # type: ignore[attr-defined]

SHAPES: dict[Any, Callable[[Shape, tuple[Any, ...], dict[str, Any]], Any]] = {
    Tensor.shape.__get__: lambda shape, args, kwargs: shape,  # type: ignore[attr-defined]
    Tensor.size: lambda shape, args, kwargs: (
        shape[args[1]] if len(args) > 1 else shape[kwargs["dim"]] if kwargs.get("dim") is not None else shape
    ),
    Tensor.numel: lambda shape, args, kwargs: shape.numel(),
    Tensor.nelement: lambda shape, args, kwargs: shape.numel(),
    torch.numel: lambda shape, args, kwargs: shape.numel(),
    Tensor.__len__: lambda shape, args, kwargs: shape[0],
}


class Tracker(TorchFunctionMode):
    """Knows which tensors are weights and where the examples of the others are; `uses` holds the records.

    Args:
        names: The trainable parameters and their names.
        n: Number of examples, two or more.
        geometry: The geometry in which norms will be asked, so that some can be taken on the way.
        constants: Tensors that were there before the forward, by identity; None if every tensor without a
            mark was.
    """

    def __init__(
        self,
        names: dict[Tensor, str],
        n: int,
        geometry: Geometry,
        constants: "dict[int, weakref.ref[Tensor]] | None" = None,
    ) -> None:
        super().__init__()
        self.names, self.n, self.geometry = names, n, geometry
        self.unit = Unit(n)
        self.uses: dict[int, tuple[Tensor, list[Record]]] = {}
        self.anchor = torch.zeros((), requires_grad=True, device=next(iter(names)).device)
        self.tracked: dict[int, Tensor] = {id(p): p for p in names}
        # Packed sequences by the identity of their rows: those rows, the order of the examples, the lengths.
        self.packed: dict[int, tuple[Rows, Place, Tensor]] = {}
        self.in_backward = False
        self.in_custom = False  # in the backward of a custom function
        self.constants = constants
        self.below: Below | None = None  # looks below the functions of Python
        self.met_unknown = False  # whether `Unseen` was raised, which somebody may catch
        self.makes_unseen = False  # whether a constant came from where only that looks

    # --- marks ----------------------------------------------------------------------------------------

    def mark(self, t: Tensor) -> Mark | None:
        """Returns what is known of a tensor; None for a constant and for a weight."""
        known: Any = t.__dict__.get(MARK)
        if known is not None and known.owner is self.unit:
            mark: Mark = known
            return mark
        if known is None or known is CONSTANT:
            if id(t) in self.tracked:
                return None
            if t.requires_grad:
                if t.grad_fn is not None:
                    why = "a tensor comes from a function that the engine does not see"
                    return Mark(self.unit, None, why)
                if torch.is_grad_enabled() and not self.in_backward:
                    refuse_leaf(t)
            if known is None:
                self._check_known(t)
            return None
        return Mark(self.unit, None, "a tensor of an earlier step is used again")

    def set_mark(self, t: Tensor, found: Place | Mark | None) -> None:
        """Notes what is known of a tensor."""
        if isinstance(found, Place):
            found = Mark(self.unit, found)
        t.__dict__[MARK] = CONSTANT if found is None else found

    def _check_known(self, t: Tensor) -> None:
        """Raises unless a tensor without a mark was there before, or is made of nothing but constants."""
        if self.constants is None or t.grad_fn is not None or id(t) in self.tracked:
            return
        known = self.constants.get(id(t))
        if (known is not None and known() is t) or (self.in_backward and not self.in_custom):
            return
        if self.in_custom:
            self.refuse_mixing(f"a backward uses a tensor that the forward did not know ({user_line()})")
        if self.below is None:
            self.met_unknown = True
            raise Unseen
        if not self.below.is_new(t):
            self.constants[id(t)] = weakref.ref(t)
        elif self.below.made(t):
            self.set_mark(t, None)
            self.makes_unseen = True
        else:
            raise UnsupportedError(
                f"The forward uses a tensor ({user_line()}) that was made where the engine cannot see it "
                "(another thread, a compiled function or an extension), so that it may depend on the batch. "
                "Make it before the forward, or by a function of torch, or use engine='loop'."
            )

    def start(self, x: Tensor) -> Tensor:
        """Returns a tensor of the batch as data of this step, with the examples first."""
        with torch._C.DisableTorchFunction():
            x = x.detach()
        x.__dict__[MARK] = Mark(self.unit, FIRST)
        return x

    def is_tracked(self, t: Any) -> bool:
        """Tells whether a value is a trainable parameter, or derived from some."""
        return isinstance(t, Tensor) and id(t) in self.tracked

    def is_data(self, t: Tensor) -> bool:
        """Tells whether a tensor may hold something that differs from example to example."""
        if id(t) in self.tracked:
            return False
        mark = t.__dict__.get(MARK)
        if mark is None or mark.owner is not self.unit:
            mark = self.mark(t)
        return mark is not None and not mark.made

    def place(self, t: Tensor) -> Place:
        """Returns where the examples of data are; refuses data whose examples are mixed."""
        mark = self.mark(t)
        assert mark is not None
        if mark.place is None:
            self.refuse_mixing(mark.why or "")
        return mark.place

    def clean(self, x: Tensor, *weights: Tensor | None) -> bool:
        """Tells whether the input is data and every weight followed or a constant: fast formulas apply."""
        return self.is_data(x) and all(w is None or not self.is_data(w) for w in weights)

    def refuse_mixing(self, why: str) -> NoReturn:
        """Raises, with the reason and the line of the user's code."""
        raise UnsupportedError(
            f"loss(model, batch) is not proven to keep its examples apart: {why}. What mixes examples lets "
            "one record change the gradients of others, which no clipping bounds. Make each loss a function "
            "of its own example, or use engine='vmap' or engine='loop', which compute each example by itself."
        )

    # --- the proof ------------------------------------------------------------------------------------

    def length(self, t: Tensor) -> Any:
        """Returns the length of a tensor, as `len` is asked while the model runs."""
        if t.dim() == 0:
            return t.__len__()  # type: ignore[no-untyped-call]
        if MARK not in t.__dict__ and not sys._getframe(2).f_code.co_filename.startswith(_OWN):
            self._check_known(t)
        return self.shape(t)[0]

    def shape(self, t: Tensor) -> Any:
        """Returns the shape of a tensor, with a `Count` where the examples are."""
        mark = t.__dict__.get(MARK)
        size = t.size()
        if mark is CONSTANT:
            return size
        if sys._getframe(3).f_code.co_filename in _PLAIN_SIZES:
            return size
        if mark is None or mark.owner is not self.unit or mark.made or mark.why == PACKED_SIZES:
            return size
        if mark.place is None:  # mixed values may decide on the sizes
            return Shape([Count(1, Unit(length, chosen=True)) for length in size])
        place: Place = mark.place
        unit = self.unit if place.rows is None or not place.rows.chosen else place.rows
        sizes: list[Any] = list(size)
        sizes[place.axis] = Count(place.outer * place.inner, unit)
        return Shape(sizes)

    def prove(
        self,
        func: Any,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        tensors: list[Tensor],
    ) -> None:
        """Finds where the examples are in what a call returned, by the table; its arguments hold tensors."""
        try:
            self._check_mixed(func, tensors)
            found = self.rule(func, name)(Call(name, args, kwargs, result, self.mark, self.unit, self.unit))
            self._check_sizes(name, found, result)
            if found is None and func not in READS_NO_VALUES:
                self._check_forgotten(name, tensors)
        except Mixing as error:
            if func in CUTS and not isinstance(result, Tensor):  # the number of pieces would tell
                self.refuse_mixing(self._reason(error))
            found = Mark(self.unit, None, self._reason(error))
        if not isinstance(found, Mark) and self._has_numbers(func, args, kwargs, tensors):
            outputs = tensors_in(result)
            if func not in KEEPS_VALUES and any(t.is_floating_point() or t.is_complex() for t in outputs):
                why = f"{name} computes with the position of the examples in the batch ({user_line()})"
                found = Mark(self.unit, None, why)
            elif isinstance(found, Place):
                found = Mark(self.unit, found, numbers=True, picks=self._picks(func, args, found, result))
        if isinstance(found, Place):
            mark = Mark(self.unit, found)
            if func in KEEPS_VALUES:
                source = self.mark(args[0]) if args and isinstance(args[0], Tensor) else None
                if source is not None:
                    if source.picks is not None:
                        mark.picks = self._picks(func, args, found, result)
                    mark.alike = source.alike and not any(map(self.is_data, tensors_in((args[1:], kwargs))))
                    mark.numbers = source.numbers
            found = mark
        if isinstance(result, Tensor):
            assert not isinstance(found, list)
            self.set_mark(result, found)
        elif isinstance(found, list):
            for t, one in zip(tensors_in(result), found, strict=True):
                self.set_mark(t, one)
        else:
            for t in tensors_in(result):
                self.set_mark(t, found)

    def _has_numbers(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> bool:
        """Tells whether positions of examples are among the arguments, but for an index."""
        if func in INDEXING:
            named = [value for key, value in kwargs.items() if key != "index"]
            tensors = tensors_in((args[:1], args[2:] if func is Tensor.__setitem__ else args[3:], named))
        return any(map(self.has_numbers, tensors))

    def _picks(self, func: Any, args: tuple[Any, ...], place: Place, result: Any) -> Picks | None:
        """What an index tensor picks after its values were moved."""
        if func not in KEEPS_VALUES or not args or not isinstance(args[0], Tensor):
            return None
        if not isinstance(result, Tensor) or result.dtype not in (torch.int64, torch.int32):
            return None  # other numbers are rounded, or wrap around
        mark = self.mark(args[0])
        return None if mark is None or mark.picks is None else Picks(mark.picks.source, place.rows)

    def has_numbers(self, t: Tensor) -> bool:
        """Tells whether the values of data are the positions of the examples."""
        mark = t.__dict__.get(MARK)
        return mark is not None and mark.numbers

    def _check_mixed(self, func: Any, tensors: list[Tensor]) -> None:
        """Raises if a mixed value is among the arguments, be it as a size or as a number."""
        if func in TAKES_MIXED:
            return
        for t in tensors:
            mark = t.__dict__.get(MARK)
            if mark is None or mark.owner is not self.unit:
                mark = self.mark(t)
            if mark is not None and mark.why is not None:
                raise Mixing(mark.why)

    def _check_forgotten(self, name: str, tensors: list[Tensor]) -> None:
        """Raises if data is among the arguments of what is taken for a constant."""
        for t in tensors:
            mark = self.mark(t)
            if mark is not None and mark.place is not None and not mark.alike:
                raise Mixing(f"{name} takes data where it is only known to take constants")

    def _check_sizes(self, name: str, found: Any, result: Any) -> None:
        """Raises if an axis that was found has not as many entries as the examples there."""
        if found is None:
            return
        if isinstance(result, Tensor):
            pairs: Any = ((result, found),)
        else:
            tensors = tensors_in(result)
            pairs = zip(tensors, found if isinstance(found, list) else [found] * len(tensors), strict=True)
        for t, one in pairs:
            place = one.place if isinstance(one, Mark) else one
            if place is None:
                continue
            size = t.shape[place.axis] if 0 <= place.axis < t.dim() else -1
            if size != place.outer * place.length(self.n) * place.inner:
                raise Mixing(f"{name} returns a tensor that has its examples on no axis")

    def rule(self, func: Any, name: str) -> Callable[[Call], Any]:
        """Returns the row of a function."""
        rule = TABLE.get(func)
        return _without_row if rule is None else rule

    def write(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Makes a call that changes its first argument in place, if that keeps the examples apart."""
        target: Tensor = args[0]
        tensors = tensors_in((args, kwargs))
        try:
            self._check_mixed(func, tensors)
            found = IN_PLACE[func](Call(name, args, kwargs, target, self.mark, self.unit, self.unit))
        except Mixing as error:
            self.refuse_mixing(self._reason(error))
        before = self.mark(target)
        args, kwargs = without_counts(args), without_counts(kwargs)
        if found is None:
            return func(*args, **kwargs)
        if not isinstance(found, Mark) and self._has_numbers(func, args, kwargs, tensors):
            self.refuse_mixing(f"{name} writes the position of the examples ({user_line()})")
        assert not isinstance(found, list)
        place = found.place if isinstance(found, Mark) else found
        if before is None or before.made or before.alike:
            if before is None or self._is_shared(target):
                raise UnsupportedError(
                    f"The forward writes data of the batch into a tensor that was not made in this step "
                    f"({name}, {user_line()}), so that examples meet through it. Write to a new tensor, or "
                    "use engine='loop'."
                )
        elif place != before.place:
            self.refuse_mixing(f"{name} writes each example's values to others ({user_line()})")
        try:
            result = func(*args, **kwargs)
        except RuntimeError as error:
            if "custom Function" not in str(error):
                raise
            raise UnsupportedError(
                f"The forward changes copies of a weight in place ({name}, {user_line()}). Use the function "
                "that returns a new tensor, or engine='loop'."
            ) from error
        for t in {id(t): t for t in (target, *tensors_in(result))}.values():
            self.set_mark(t, found)
        return result

    def _is_shared(self, t: Tensor) -> bool:
        """Tells whether another tensor has the same memory."""
        known = 2  # its own reference, and the one that counts
        if self.below is not None:
            known += self.below.holds(t)
        return torch._C._storage_Use_Count(t.untyped_storage()._cdata) > known

    def _reason(self, error: Mixing) -> str:
        text = str(error)
        return text if text.endswith(")") else f"{text} ({user_line()})"

    # --- names and records ----------------------------------------------------------------------------

    def names_in(self, *values: Any) -> str:
        """Returns the names of the followed weights among some values, for a message."""
        found = [repr(self.name(t)) for t in tensors_in(values) if self.is_tracked(t)]
        return ", ".join(dict.fromkeys(found))

    def name(self, t: Tensor) -> str:
        """Returns the name of a followed weight."""
        return self.names.get(t) or f"a weight of shape {tuple(t.shape)} derived from parameters"

    def outside(self) -> bool:
        """Tells whether a backward runs that is not ours, such as an adversarial step, without records."""
        if not self.in_backward and torch.is_grad_enabled():
            raise UnsupportedError(
                "The loss differentiates its own gradient. Use engine='vmap' or engine='loop'."
            )
        return not self.in_backward

    def add(self, weight: Tensor, record: Record, function: str) -> None:
        """Keeps the record of a weight that a function used."""
        record.function = function
        self.uses.setdefault(id(weight), (weight, []))[1].append(record)


def _without_row(call: Call) -> NoReturn:
    raise Mixing(f"{call.name} is not known to treat each example by itself")


_NESTS = (list, tuple, dict, slice)
_SINGLE = {int, float, bool, str, type(None), torch.dtype, torch.device}


def tensors_in(value: Any) -> list[Tensor]:
    """Returns the tensors in nested lists, tuples and dictionaries."""
    found: list[Tensor] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, slice):
        _collect((value.start, value.stop, value.step), found)
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, Tensor):  # without a call, since nearly all are
                found.append(item)
            elif isinstance(item, _NESTS):
                _collect(item, found)


def looked_at(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Tensor], bool]:
    """Returns the tensors among the arguments of a call, and tells whether a `Count` is among them."""
    found: list[Tensor] = []
    counted = False
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, Tensor):
            found.append(value)
        elif type(value) not in _SINGLE:
            _collect(value, found)
            counted = counted or holds_count(value)
    return found, counted


def holds_count(value: Any) -> bool:
    """Tells whether a `Count` is among the values, in lists, tuples, dictionaries or slices."""
    kind = type(value)
    if kind is Count:
        return True
    if kind is slice:
        return type(value.start) is Count or type(value.stop) is Count or type(value.step) is Count
    if kind is list or kind is tuple or kind is Shape or kind is torch.Size:
        return any(map(holds_count, value))
    if kind is dict:
        return any(map(holds_count, value.values()))
    return False


def without_counts(value: Any) -> Any:
    """Returns the same with plain numbers instead of `Count`s."""
    if isinstance(value, Count):
        return value.value
    if isinstance(value, slice):
        return slice(*map(without_counts, (value.start, value.stop, value.step)))
    if isinstance(value, tuple):
        return tuple(map(without_counts, value))
    if isinstance(value, list):
        return [without_counts(item) for item in value]
    if isinstance(value, dict):
        return {key: without_counts(item) for key, item in value.items()}
    return value


_seen_bodies: dict[Any, Callable[..., Any]] = {}


def seen_body(func: Any) -> Callable[..., Any] | None:
    """Returns a Python function of torch without its first look for modes, so that its calls are seen."""
    if func in _seen_bodies:
        return _seen_bodies[func]
    module = getattr(func, "__module__", None) or ""
    if not isinstance(func, types.FunctionType) or not module.startswith("torch."):
        return None
    space = dict(func.__globals__)
    for name in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
        space[name] = lambda *_: False
    copy = types.FunctionType(func.__code__, space, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    _seen_bodies[func] = copy
    return copy


WRITTEN_OUT: set[Any] = {F.multi_head_attention_forward, F.gumbel_softmax, F.triplet_margin_loss}
"""Functions that are followed through their own body."""
