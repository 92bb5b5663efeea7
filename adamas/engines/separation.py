"""The table of functions that treat each example by itself, and where the examples are in what they return.

A row is a family of functions and a rule. The rule looks at one call that really happened and returns the place
of the examples in its result, or raises `Mixing` where the result of one example may depend on another. A
function that has no row is not proven. A row is right if, for the places that it returns, the function applied
to a batch equals the function applied to each example alone; the tests compare every row with `torch.func.vmap`.
Since the rules speak of functions whose backward is torch's own, gradients are separated as the values are.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from adamas.engines.counts import Count, Unit
from adamas.engines.places import FIRST, Place, Rows, equal_along, viewed


class Mixing(Exception):
    """Says why a call is not proven to keep the examples apart."""


@dataclass(frozen=True, slots=True)
class Picks:
    """What an index tensor picks: rows of an axis that holds examples, so that their examples are known.

    Attributes:
        source: The place, but for its axis, that may be indexed.
        rows: What the picked rows are; None for every example once, in order.
    """

    source: Place
    rows: Rows | None


@dataclass(slots=True)
class Mark:
    """What is known of a tensor of the running model.

    Attributes:
        place: Where its examples are; None for a constant, or if they are mixed.
        why: Why its examples are mixed; None if they are not.
        picks: What it picks, for an index tensor.
        total: Whether it is a sum over the examples of values that are separated.
        made: Whether it is a constant that was made in this forward and may be written to.
        chosen: The rows that a mask chooses.
        alike: Whether it is a constant that was spread over the examples, the same for each.
        numbers: Whether its values are the positions of the examples, which may pick rows and nothing else.
    """

    owner: Any
    place: Place | None
    why: str | None = None
    picks: Picks | None = None
    total: bool = False
    made: bool = False
    chosen: Rows | None = None
    alike: bool = False
    numbers: bool = False


Found: TypeAlias = "Place | Mark | None | list[Place | Mark | None]"
"""The place in the result, or one for each of its tensors."""

_ALL = "all"

PACKED_SIZES = "the sizes of packed sequences tell of all examples (pack_padded_sequence)"
"""Why the batch sizes of packed sequences are mixed; as a size they stand for the number of examples."""


class Call:
    """One call of a torch function, with what is known of its arguments.

    Args:
        name: The function's name.
        args: Its arguments.
        kwargs: Its named arguments.
        result: What it returned; for a function that works in place, the tensor that it will change.
        mark: Returns what is known of a tensor, None for a constant.
        unit: The examples of the batch.
    """

    __slots__ = ("args", "kwargs", "mark", "n", "name", "owner", "result", "unit")

    def __init__(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        mark: Callable[[Tensor], Mark | None],
        unit: Unit,
        owner: Any = None,
    ) -> None:
        self.name, self.args, self.kwargs, self.result = name, args, kwargs, result
        self.mark, self.unit, self.n, self.owner = mark, unit, unit.length, owner

    def get(self, position: int, *names: str, default: Any = None) -> Any:
        """Returns an argument by position or by one of its names."""
        if position < len(self.args):
            return self.args[position]
        for name in names:
            if name in self.kwargs:
                return self.kwargs[name]
        return default

    @property
    def first(self) -> Tensor:
        """The tensor that the function is applied to."""
        value: Tensor = self.args[0] if self.args else next(iter(self.kwargs.values()))
        return value

    def place(self, t: Any) -> Place | None:
        """Returns where a tensor's examples are, None for a constant; raises if they are mixed."""
        if not isinstance(t, Tensor):
            return None
        mark = self.mark(t)
        if mark is None:
            return None
        if mark.why is not None:
            raise Mixing(mark.why)
        return mark.place

    def tensors(self) -> Iterator[Tensor]:
        """Yields the tensors among the arguments."""
        for value in (*self.args, *self.kwargs.values()):
            if isinstance(value, Tensor):
                yield value
            elif isinstance(value, list | tuple):
                yield from (item for item in value if isinstance(item, Tensor))

    def constant(self, t: Tensor, axis: int, place: Place) -> None:
        """Raises unless a constant is the same for each example, on the axis where it meets them."""
        if axis >= 0 and t.shape[axis] != 1 and not equal_along(t, axis, place, self.n):
            raise Mixing(f"{self.name} combines the examples with a constant that differs by their position")

    def only(self, *data: Tensor) -> None:
        """Raises if a tensor beside these holds data."""
        for t in self.tensors():
            if not any(t is d for d in data) and self.place(t) is not None:
                raise Mixing(f"{self.name} takes data where it is only known to take constants")


# --- functions that broadcast -------------------------------------------------------------------------


def broadcast(call: Call, tensors: Iterable[Tensor], dim: int) -> Place | None:
    """Aligns tensors from the last axis: all data must have its examples at one place."""
    found: Place | None = None
    spread: Place | None = None  # of constants that are the same for each example
    constants = []
    for t in tensors:
        place = call.place(t)
        if place is None:
            constants.append(t)
            continue
        if t.dim() != dim:
            place = place.shifted(dim - t.dim())
        mark = call.mark(t)
        if mark is not None and mark.alike:
            constants.append(t)
            spread = place if spread is None or spread == place else FIRST
        elif found is None:
            found = place
        elif found != place:
            raise Mixing(f"{call.name} combines each example with others")
    if found is None:
        return spread
    for t in constants:
        call.constant(t, found.axis - dim + t.dim(), found)
    return found


def _elementwise(call: Call) -> Found:
    result = call.result
    if not isinstance(result, Tensor):
        result = result[0]
    return broadcast(call, call.tensors(), result.dim())


def _copied(call: Call) -> Found:
    """`x.copy_(source)`, whatever was there before."""
    return broadcast(call, (call.args[1],), call.first.dim())


def _cast(call: Call) -> Found:
    return call.place(call.first)


def _where(call: Call) -> Found:
    if len(call.args) + len(call.kwargs) == 1:
        return _nonzero(call, as_tuple=True)
    return _elementwise(call)


def _pointwise_loss(call: Call) -> Found:
    if call.kwargs.get("reduction", "mean") != "none" or call.kwargs.get("reduce") is not None:
        raise Mixing(f'{call.name} without reduction="none" runs over the examples')
    return broadcast(call, call.tensors(), call.result.dim())


def _dropout(call: Call) -> Found:
    return call.place(call.first)


# --- functions along some axes ------------------------------------------------------------------------


def _dims(value: Any, dim: int) -> list[int]:
    axes = [value] if isinstance(value, int) else list(value)
    return [axis + dim if axis < 0 else axis for axis in axes]


def along(call: Call, x: Tensor, dims: Any) -> Place | None:
    """Lets a function mix along some axes, which must not hold the examples."""
    place = call.place(x)
    if place is None:
        return None
    if dims is None or dims is _ALL or isinstance(dims, bool) or (not isinstance(dims, int) and not len(dims)):
        raise Mixing(f"{call.name} runs over all examples")
    axes = _dims(dims, x.dim())
    if place.axis in axes:
        raise Mixing(f"{call.name} runs along the examples")
    result = call.result if isinstance(call.result, Tensor) else call.result[0]
    kept = result.dim() == x.dim()
    return place if kept else place.shifted(-sum(axis < place.axis for axis in axes))


def _along(position: int, default: Any = _ALL) -> Callable[[Call], Found]:
    def rule(call: Call) -> Found:
        x = call.first
        call.only(x)
        return along(call, x, call.get(position, "dim", "axis", "dims", default=default))

    return rule


def _sum(call: Call) -> Found:
    x = call.first
    dims = call.get(1, "dim", "axis", default=_ALL)
    place = call.place(x)
    if place is not None and (dims is _ALL or dims is None):
        return Mark(call.owner, None, "sum runs over all examples", total=True)
    return _along(1)(call)


def _max(call: Call) -> Found:
    other = call.get(1, "other")
    return _elementwise(call) if isinstance(other, Tensor) else _along(1)(call)


def _softmax(call: Call) -> Found:
    x = call.first
    dims = call.get(1, "dim")
    if dims is None:
        dims = 0 if x.dim() in (0, 1, 3) else 1
    return along(call, x, dims)


def _flip(call: Call) -> Found:
    dims = call.kwargs.get("dims", call.args[1:])
    return along(call, call.first, dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims)


def _quantile(call: Call) -> Found:
    if not isinstance(call.get(1, "q"), float):
        raise Mixing("quantile with several levels is not followed")
    return _along(2)(call)


def _last_axes(count: int | Callable[[Call], int]) -> Callable[[Call], Found]:
    """Lets a function mix along the last axes."""

    def rule(call: Call) -> Found:
        x = call.first
        k = count if isinstance(count, int) else count(call)
        call.only(x)
        place = call.place(x)
        if place is not None and place.axis >= x.dim() - k:
            raise Mixing(f"{call.name} runs along the examples")
        return place

    return rule


def _normalized(call: Call) -> int:
    shape = call.get(1, "normalized_shape")
    return 1 if isinstance(shape, int) else len(shape)


def _pad(call: Call) -> Found:
    x, pad = call.first, call.get(1, "pad")
    place = call.place(x)
    if place is not None:
        sides = pad[2 * (x.dim() - 1 - place.axis) :][:2]
        if any(sides) or any(isinstance(size, Count) for size in pad):
            raise Mixing("pad adds entries to the axis of the examples")
    return place


def _glu(call: Call) -> Found:
    return along(call, call.first, call.get(1, "dim", default=-1))


def _diff(call: Call) -> Found:
    x, dim = call.first, call.get(2, "dim", default=-1)
    given = [t for t in (x, call.get(3, "prepend"), call.get(4, "append")) if t is not None]
    along(call, x, dim)
    return _joined(call, given, dim, call.result)


def _sort(call: Call) -> Found:
    x = call.first
    place = call.place(x)
    dim = call.get(1, "dim", default=-1)
    if isinstance(dim, bool):  # sort(x, descending)
        dim = -1
    if place is None or x.dim() != 1 or _dims(dim, 1) != [0] or not place.outer == place.inner == 1:
        return along(call, x, dim)
    indices = call.result if isinstance(call.result, Tensor) else call.result[1]
    mark = call.mark(x)
    if mark is not None and mark.picks is not None and call.name == "argsort":
        inverse = _inverse(mark.picks, call)
        if inverse is not None:
            return inverse
    owner = indices.detach() if place.rows is None else place.rows.owner[indices.detach()]
    order = Rows(owner, call.n, chosen=place.rows is not None and place.rows.chosen)
    sorted_place = Place(0, 1, 1, order)
    picking = Mark(call.owner, sorted_place, picks=Picks(place, order), numbers=True)
    return picking if isinstance(call.result, Tensor) else [sorted_place, picking]


def _inverse(picks: Picks, call: Call) -> Mark | None:
    """The mark of the permutation that undoes another one."""
    if picks.rows is None or picks.rows.chosen or picks.source != FIRST:
        return None
    return Mark(call.owner, FIRST, picks=Picks(Place(0, 1, 1, picks.rows), None), numbers=True)


# --- products -----------------------------------------------------------------------------------------


def products(call: Call, a: Tensor, b: Tensor) -> Place | None:
    """A matrix product: the examples are on batch axes of both, or on rows of one beside a constant."""
    pa, pb = call.place(a), call.place(b)
    dim = call.result.dim()
    if pa is None and pb is None:
        return None
    rows_a = pa is not None and pa.axis == a.dim() - 2
    columns_b = pb is not None and pb.axis == b.dim() - 1 and b.dim() > 1
    if (pa is not None and pa.axis == a.dim() - 1) or (pb is not None and pb.axis == max(0, b.dim() - 2)):
        raise Mixing(f"{call.name} sums over the examples")
    if rows_a or columns_b:
        if (pa is None) == (pb is None):
            raise Mixing(f"{call.name} combines each example with others")
        if rows_a:
            assert pa is not None
            return pa._replace(axis=dim - (1 if b.dim() == 1 else 2))
        assert pb is not None
        return pb._replace(axis=dim - 1)
    # On batch axes: counted from the last, with two axes for each matrix.
    lead = dim - (a.dim() > 1) - (b.dim() > 1)
    found: Place | None = None
    for t, place in ((a, pa), (b, pb)):
        if place is None:
            continue
        place = place._replace(axis=place.axis - max(0, t.dim() - 2) + lead)
        if found is None:
            found = place
        elif found != place:
            raise Mixing(f"{call.name} combines each example with others")
    assert found is not None
    for t, place in ((a, pa), (b, pb)):
        if place is None and t.dim() > 2:
            call.constant(t, found.axis - lead + t.dim() - 2, found)
    return found


def _matmul(call: Call) -> Found:
    return products(call, call.first, call.get(1, "other", "mat2", "vec"))


def _reversed_matmul(call: Call) -> Found:
    return products(call, call.args[1], call.args[0])


def _added_product(call: Call) -> Found:
    first, second = call.get(1, "mat1", "batch1", "mat"), call.get(2, "mat2", "batch2", "vec")
    found = products(call, first, second)
    return _with_bias(call, found, call.first)


def _with_bias(call: Call, found: Place | None, bias: Tensor | None) -> Place | None:
    if bias is None:
        return found
    place, dim = call.place(bias), call.result.dim()
    if place is not None:
        place = place.shifted(dim - bias.dim())
        if found is not None and place != found:
            raise Mixing(f"{call.name} combines each example with others")
        return place
    if found is not None:
        call.constant(bias, found.axis - dim + bias.dim(), found)
    return found


def _linear(call: Call) -> Found:
    x, w, b = call.first, call.get(1, "weight"), call.get(2, "bias")
    call.only(x)
    place = call.place(x)
    if place is None:
        return None
    if place.axis == x.dim() - 1:
        raise Mixing("linear sums over the examples")
    if w.dim() == 1:
        return place
    return _with_bias(call, place, b)


def _bilinear(call: Call) -> Found:
    x, y = call.first, call.get(1, "input2")
    call.only(x, y)
    place = broadcast(call, (x, y), x.dim())
    if place is not None and place.axis == x.dim() - 1:
        raise Mixing("bilinear sums over the examples")
    return place


def _einsum(call: Call) -> Found:
    equation = call.args[0]
    operands = call.args[1:]
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or "->" not in equation:
        raise Mixing("einsum is followed only in the form 'ab,bc->ac'")
    inputs, output = equation.replace(" ", "").split("->")
    if "..." in equation:
        inputs, output = _without_dots(inputs, output, operands)
    found: tuple[str, Place] | None = None
    letters = inputs.split(",")
    for subscript, t in zip(letters, operands, strict=True):
        place = call.place(t)
        if place is None:
            continue
        letter = subscript[place.axis]
        if found is not None and found != (letter, place._replace(axis=0)):
            raise Mixing("einsum combines each example with others")
        found = letter, place._replace(axis=0)
    if found is None:
        return None
    letter, place = found
    if output.count(letter) != 1 or any(subscript.count(letter) > 1 for subscript in letters):
        raise Mixing("einsum sums over the examples")
    for subscript, t in zip(letters, operands, strict=True):
        own = call.place(t)
        if own is None and letter in subscript:
            call.constant(t, subscript.index(letter), place)
        elif own is not None and subscript.find(letter) != own.axis:
            raise Mixing("einsum combines each example with others")
    return place._replace(axis=output.index(letter))


def _without_dots(inputs: str, output: str, operands: Sequence[Tensor]) -> tuple[str, str]:
    """Writes letters for the axes that '...' stands for, which are aligned from the last."""
    free = [letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in inputs + output]
    named, most = [], 0
    for subscript, t in zip(inputs.split(","), operands, strict=True):
        count = t.dim() - len(subscript.replace("...", "")) if "..." in subscript else 0
        most = max(most, count)
        named.append(subscript.replace("...", "".join(free[-count:]) if count else ""))
    return ",".join(named), output.replace("...", "".join(free[-most:]) if most else "")


def _attention(call: Call) -> Found:
    query, key, value = call.first, call.get(1, "key"), call.get(2, "value")
    mask = call.get(3, "attn_mask")
    tensors = [query, key, value] if mask is None else [query, key, value, mask]
    dim = call.result.dim()
    for t in tensors:
        place = call.place(t)
        if place is not None and place.axis >= t.dim() - 2:
            raise Mixing("scaled_dot_product_attention runs along the examples")
    if call.kwargs.get("enable_gqa"):
        places = [call.place(t) for t in tensors]
        if any(p is not None and p.axis == dim - 3 for p in places):
            raise Mixing("grouped attention folds the examples with its heads")
        for t, place in zip(tensors, places, strict=True):
            if place is None and t.shape[:-3].numel() > 1:
                raise Mixing("grouped attention meets a constant with batch axes")
        found = {p.shifted(dim - t.dim()) for t, p in zip(tensors, places, strict=True) if p is not None}
        if len(found) > 1:
            raise Mixing("scaled_dot_product_attention combines each example with others")
        return next(iter(found), None)
    return broadcast(call, tensors, dim)


def _distances(call: Call) -> Found:
    a, b = call.first, call.get(1, "x2")
    for t in (a, b):
        place = call.place(t)
        if place is not None and place.axis == t.dim() - 1:
            raise Mixing("cdist runs along the examples")
    pa, pb = call.place(a), call.place(b)
    if (pa is not None and pa.axis == a.dim() - 2) or (pb is not None and pb.axis == b.dim() - 2):
        if pa is None and pb is not None:
            return pb._replace(axis=call.result.dim() - 1)
        if pb is None and pa is not None:
            return pa._replace(axis=call.result.dim() - 2)
        raise Mixing("cdist combines each example with others")
    return broadcast(call, (a, b), call.result.dim())


# --- functions of layers ------------------------------------------------------------------------------


def batch_first(axes: int | None = None) -> Callable[[Call], Found]:
    """Functions whose first axis is a batch: each of its entries is treated by itself.

    Args:
        axes: How many axes the images have beside batch and channels; None for any.
    """

    def rule(call: Call) -> Found:
        x = call.first
        call.only(x)
        place = call.place(x)
        if place is None:
            return None
        if place.axis != 0:
            raise Mixing(f"{call.name} has its examples on another axis than the first")
        if x.dim() != axes + 2 if axes is not None else x.dim() < 2:
            raise Mixing(f"{call.name} has an input without an example axis")
        return place

    return rule


def _pool(axes: int) -> Callable[[Call], Found]:
    return _last_axes(axes)


def _group_norm(call: Call) -> Found:
    return batch_first()(call)


def _instance_norm(call: Call) -> Found:
    if call.get(1, "running_mean") is not None or call.get(5, "use_input_stats") is False:
        raise Mixing("instance_norm with running statistics mixes the examples")
    return batch_first()(call)


def _batch_norm(call: Call) -> Found:
    if call.get(5, "training", default=False) or call.get(1, "running_mean") is None:
        raise Mixing("batch_norm in training mixes the examples")
    x = call.first
    call.only(x)
    place = call.place(x)
    if place is not None and place.axis == 1:
        raise Mixing("batch_norm has its examples on the axis of the channels")
    return place


def _grid_sample(call: Call) -> Found:
    x, grid = call.first, call.get(1, "grid")
    found: Place | None = None
    for t in (x, grid):
        place = call.place(t)
        if place is not None and (place.axis or (found is not None and found != place)):
            raise Mixing("grid_sample combines each example with others")
        found = found or place
    if found is not None:
        for t in (x, grid):
            if call.place(t) is None:
                call.constant(t, 0, found)
    return found


def _embedding(call: Call) -> Found:
    indices = call.first
    call.only(indices)
    if call.get(3, "max_norm") is not None or call.get(5, "scale_grad_by_freq", default=False):
        raise Mixing("embedding with max_norm or scale_grad_by_freq mixes the examples")
    return call.place(indices)


def _embedding_bag(call: Call) -> Found:
    indices = call.first
    if call.get(2, "offsets") is not None or indices.dim() != 2:
        raise Mixing("embedding_bag with offsets is not followed")
    if call.get(3, "max_norm") is not None or call.get(5, "scale_grad_by_freq", default=False):
        raise Mixing("embedding_bag with max_norm or scale_grad_by_freq mixes the examples")
    weights = call.kwargs.get("per_sample_weights")
    tensors = (indices,) if weights is None else (indices, weights)
    call.only(*tensors)
    place = broadcast(call, tensors, 2)
    if place is not None and place.axis:
        raise Mixing("embedding_bag sums over the examples")
    return place


def _one_hot(call: Call) -> Found:
    if call.get(1, "num_classes", default=-1) < 0:
        raise Mixing("one_hot without num_classes counts the classes of the whole batch")
    return call.place(call.first)


def _cross_entropy(call: Call) -> Found:
    x, target = call.first, call.get(1, "target")
    reduction = call.get(6, "reduction", default="mean")
    if reduction != "none" or call.get(3, "size_average") is not None or call.get(5, "reduce") is not None:
        raise Mixing(f'{call.name} without reduction="none" runs over the examples')
    call.only(x, target)
    classes = 0 if x.dim() == 1 else 1
    found: Place | None = None
    for t in (x, target):
        place = call.place(t)
        if place is None:
            continue
        if t.dim() == x.dim() and t.is_floating_point():
            if place.axis == classes:
                raise Mixing(f"{call.name} runs along the examples")
            place = place.shifted(-(place.axis > classes))
        if found is not None and found != place:
            raise Mixing(f"{call.name} combines each example with others")
        found = place
    if found is not None:
        for t in (x, target):
            if call.place(t) is None:
                whole = t.dim() == x.dim() and t.is_floating_point()
                call.constant(t, found.axis + (whole and found.axis >= classes), found)
    return found


def _ctc_loss(call: Call) -> Found:
    """`ctc_loss(log_probs (T, n, C), targets (n, S), input_lengths, target_lengths)`."""
    x, targets = call.args[:2]
    reduction = call.get(5, "reduction", default="mean")
    if reduction != "none" or targets.dim() != 2 or x.dim() != 3:
        raise Mixing('ctc_loss is followed only with reduction="none" and padded targets')
    found: Place | None = None
    for t in call.tensors():
        place = call.place(t)
        if place is None:
            continue
        if t is x:
            if place.axis != 1:
                raise Mixing("ctc_loss has its examples on another axis than the second")
            place = place._replace(axis=0)
        if place.axis or (found is not None and found != place):
            raise Mixing("ctc_loss combines each example with others")
        found = place
    if found is not None:
        for t in call.tensors():
            if call.place(t) is None:
                call.constant(t, 1 if t is x else 0, found)
    return found


def _similarity(position: int) -> Callable[[Call], Found]:
    """Elementwise, then a sum along one axis."""

    def rule(call: Call) -> Found:
        x, y = call.args[:2]
        dim = max(x.dim(), y.dim())
        place = broadcast(call, (x, y), dim)
        axis = _dims(call.get(position, "dim", default=1 if position == 2 else -1), dim)[0]
        if place is None:
            return None
        if place.axis == axis:
            raise Mixing(f"{call.name} runs along the examples")
        kept = call.result.dim() == dim
        return place if kept else place.shifted(-(axis < place.axis))

    return rule


def _recurrent(call: Call) -> Found:
    """A fused recurrent layer with constant weights: `(x, states, weights, ..., batch_first)`."""
    x, states, weights = call.args[:3]
    if not isinstance(call.args[3], bool):
        raise Mixing(f"{call.name} of packed sequences with constant weights is not followed")
    states = list(states) if isinstance(states, list | tuple) else [states]
    axis = 0 if call.args[8] else 1
    for w in weights:
        if call.place(w) is not None:
            raise Mixing(f"{call.name} has weights that are data")
    place = call.place(x)
    for s in states:
        own = call.place(s)
        if own is not None and (own.axis != 1 or (place is not None and own._replace(axis=axis) != place)):
            raise Mixing(f"{call.name} combines each example with others")
        place = own._replace(axis=axis) if place is None and own is not None else place
    if place is None:
        return None
    if place.axis != axis:
        raise Mixing(f"{call.name} has its examples on another axis than its batch's")
    for s in states:
        if call.place(s) is None:
            call.constant(s, 1, place)
    return [place, *(place._replace(axis=1) for _ in states)]


def _recurrent_cell(call: Call) -> Found:
    x, state, *weights = call.args
    states = list(state) if isinstance(state, list | tuple) else [state]
    for w in weights:
        if call.place(w) is not None:
            raise Mixing(f"{call.name} has weights that are data")
    place = broadcast(call, (x, *states), 2)
    if place is not None and place.axis:
        raise Mixing(f"{call.name} runs along the examples")
    return place


# --- views --------------------------------------------------------------------------------------------


def _view(call: Call) -> Found:
    x, result = call.first, call.result
    if len(call.args) > 1 and isinstance(call.args[1], torch.dtype):
        raise Mixing("view as another number type is not followed")
    place = call.place(x)
    if place is None:
        return None
    found = viewed(place, x.shape, result.shape, call.n)
    if found is None:
        raise Mixing(f"{call.name} leaves the examples on no axis of their own")
    if call.name in ("view", "reshape"):
        _check_counts(call, _sizes(call), found)
    elif call.name == "unflatten":
        axis = _dims(call.get(1, "dim"), x.dim())[0]
        _check_counts(call, call.get(2, "sizes"), found.shifted(-axis))
    return found


def _check_counts(call: Call, sizes: Sequence[Any], place: Place) -> None:
    """Raises if a number of examples is the size of another axis than theirs."""
    for axis, size in enumerate(sizes):
        if isinstance(size, Count) and (axis != place.axis or size.unit is not (place.rows or call.unit)):
            if place.rows is None or place.rows.chosen or size.unit is not call.unit or axis != place.axis:
                raise Mixing(f"{call.name} makes an axis as long as the batch that does not hold its examples")


def _moved(order: Callable[[Call, int], Sequence[int]]) -> Callable[[Call], Found]:
    """Functions that permute the axes; `order` tells which axis comes to each place."""

    def rule(call: Call) -> Found:
        x = call.first
        place = call.place(x)
        return None if place is None else place._replace(axis=list(order(call, x.dim())).index(place.axis))

    return rule


def _permuted(call: Call, dim: int) -> Sequence[int]:
    dims = call.kwargs.get("dims", call.args[1:])
    return _dims(dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims, dim)


def _transposed(call: Call, dim: int) -> Sequence[int]:
    if call.name in ("t", "T", "mT", "adjoint", "mH", "H"):
        if call.name == "T":
            return range(dim)[::-1]
        a, b = (0, 1) if dim == 2 else (dim - 2, dim - 1)
        if dim < 2:
            return range(dim)
    else:
        pair = (call.get(1, "dim0", "axis0"), call.get(2, "dim1", "axis1"))
        a, b = _dims(pair, dim)
    order = list(range(dim))
    order[a], order[b] = order[b], order[a]
    return order


def _movedim(call: Call, dim: int) -> Sequence[int]:
    source, target = (
        _dims(call.get(i, name), dim) for i, name in ((1, "source"), (2, "destination"))
    )
    order = [axis for axis in range(dim) if axis not in source]
    for to, axis in sorted(zip(target, source, strict=True)):
        order.insert(to, axis)
    return order


def _unsqueeze(call: Call) -> Found:
    place = call.place(call.first)
    if place is None:
        return None
    axis = _dims(call.get(1, "dim"), call.result.dim())[0]
    return place.shifted(axis <= place.axis)


def _squeeze(call: Call) -> Found:
    x = call.first
    place = call.place(x)
    if place is None:
        return None
    dims = call.get(1, "dim")
    axes = range(x.dim()) if dims is None else _dims(dims, x.dim())
    gone = [axis for axis in axes if x.shape[axis] == 1]
    if place.axis in gone:
        raise Mixing(f"{call.name} removes the axis of the examples")
    return place.shifted(-sum(axis < place.axis for axis in gone))


def _sizes(call: Call) -> Sequence[Any]:
    """The sizes among the arguments, given one by one or together."""
    given = call.kwargs.get("size", call.kwargs.get("shape", call.kwargs.get("repeats", call.args[1:])))
    if len(given) == 1 and not isinstance(given[0], int):
        return list(given[0])
    return list(given)


def _expand(call: Call) -> Found:
    x = call.first
    result = call.result
    other = call.get(1, "other")
    if isinstance(other, Tensor):
        return broadcast(call, (x, other), result.dim())
    place, sizes = call.place(x), _sizes(call)
    if place is not None:
        place = place.shifted(result.dim() - x.dim())
        _check_counts(call, sizes, place)
        return place
    found = over_examples(call, sizes)
    if found is None:
        return None
    call.constant(x, found.axis + x.dim() - len(sizes), found)
    return Mark(call.owner, found, alike=True)


def over_examples(call: Call, sizes: Sequence[Any]) -> Place | None:
    """The place in a constant that was given a number of examples as a size."""
    counts = [(axis, size) for axis, size in enumerate(sizes) if isinstance(size, Count)]
    if not counts:
        return None
    if len(counts) > 1 or counts[0][1].unit is not call.unit:
        raise Mixing(f"{call.name} makes a tensor with several sizes that count examples")
    axis, count = counts[0]
    return Place(axis, 1, count.times)


def _repeat(call: Call) -> Found:
    x = call.first
    sizes = _sizes(call)
    place = call.place(x)
    new = len(sizes) - x.dim()
    counts = [axis for axis, size in enumerate(sizes) if isinstance(size, Count)]
    if place is None:
        if not counts:
            return None
        if len(counts) > 1 or sizes[counts[0]].unit is not call.unit:
            raise Mixing("repeat with several sizes that count examples")
        (axis,) = counts
        length = 1 if axis < new else x.shape[axis - new]
        return Mark(call.owner, Place(axis, 1, sizes[axis].times * length), alike=True)
    if counts:
        raise Mixing("repeat combines each example with others")
    axis = place.axis + new
    return place._replace(axis=axis, outer=place.outer * int(sizes[axis]))


def _tile(call: Call) -> Found:
    sizes = _sizes(call)
    missing = call.first.dim() - len(sizes)
    padded = Call(
        *(call.name, (call.first, *([1] * missing), *sizes), {}, call.result, call.mark, call.unit, call.owner)
    )
    return _repeat(padded)


def _repeat_interleave(call: Call) -> Found:
    x, repeats, dim = call.first, call.get(1, "repeats"), call.get(2, "dim")
    dim = 0 if dim is None and x.dim() == 1 else dim
    if isinstance(repeats, Tensor) or dim is None:
        raise Mixing("repeat_interleave is followed only with a number and a dim")
    axis = _dims(dim, x.dim())[0]
    place = call.place(x)
    if place is None:
        return Place(axis, x.shape[axis], repeats.times) if isinstance(repeats, Count) else None
    if isinstance(repeats, Count):
        raise Mixing("repeat_interleave combines each example with others")
    return place._replace(inner=place.inner * repeats) if axis == place.axis else place


def _unfold(call: Call) -> Found:
    x = call.first
    place = call.place(x)
    if place is None:
        return None
    if _dims(call.get(1, "dimension"), x.dim())[0] == place.axis:
        raise Mixing("unfold runs along the examples")
    return place


def _pieces(call: Call) -> Found:
    """Functions that cut one axis into pieces, or take one entry or some of it."""
    x = call.first
    place = call.place(x)
    if place is None:
        return None
    if call.name in ("select", "narrow", "select_copy"):
        axis = _dims(call.get(1, "dim"), x.dim())[0]
    elif call.name == "unbind":
        axis = _dims(call.get(1, "dim", default=0), x.dim())[0]
    else:
        axis = _dims(call.get(2, "dim", default=0), x.dim())[0]
    gone = call.name in ("select", "unbind")
    if axis != place.axis:
        if any(isinstance(value, Count) for value in (*call.args, *call.kwargs.values())):
            raise Mixing(f"{call.name} computes with the number of examples")
        found = place.shifted(-(gone and axis < place.axis))
        return found if isinstance(call.result, Tensor) else [found for _ in call.result]
    if gone:
        raise Mixing(f"{call.name} takes single examples out of the batch")
    if call.name == "narrow":
        start, pieces = call.get(2, "start"), [call.result]
        if isinstance(start, Tensor):
            raise Mixing("narrow starts where a tensor says")
        return _blocks(call, place, [start], [call.result.shape[axis]])[0]
    pieces = list(call.result)
    starts, start = [], 0
    for piece in pieces:
        starts.append(start)
        start += piece.shape[axis]
    return list(_blocks(call, place, starts, [piece.shape[axis] for piece in pieces]))


def _blocks(call: Call, place: Place, starts: Sequence[int], lengths: Sequence[int]) -> list[Place]:
    """Stretches of the example axis that hold all examples, such as one of several batches joined in one."""
    size = place.length(call.n) * place.inner
    if any(start % size or length % size for start, length in zip(starts, lengths, strict=True)):
        raise Mixing(f"{call.name} takes some of the examples out of the batch")
    if place.outer == 1 and len(starts) > 1:
        raise Mixing(f"{call.name} takes some of the examples out of the batch")
    return [place._replace(outer=length // size) for length in lengths]


def _stack(call: Call) -> Found:
    tensors = call.args[0] if call.args else call.kwargs["tensors"]
    dim = tensors[0].dim()
    place = broadcast(call, tensors, dim)
    if place is None:
        return None
    axis = _dims(call.get(1, "dim", default=0), dim + 1)[0]
    return place.shifted(axis <= place.axis)


def _cat(call: Call) -> Found:
    tensors = call.args[0] if call.args else call.kwargs["tensors"]
    return _joined(call, tensors, call.get(1, "dim", "axis", default=0), call.result)


def _joined(call: Call, tensors: Sequence[Tensor], dim: Any, result: Tensor) -> Place | None:
    """Tensors that are joined along an axis, which may be that of the examples."""
    tensors = [t for t in tensors if t.dim() == result.dim()]  # torch ignores empty vectors
    axis = _dims(dim, result.dim())[0]
    places = [call.place(t) for t in tensors]
    found = next((p for p in places if p is not None), None)
    if found is None:
        return None
    outer = 0
    for t, place in zip(tensors, places, strict=True):
        if place is None:
            if axis == found.axis:
                raise Mixing(f"{call.name} joins examples with constants along the batch")
            call.constant(t, found.axis, found)
            continue
        if axis == found.axis:
            if place._replace(outer=1) != found._replace(outer=1):
                raise Mixing(f"{call.name} joins tensors that hold their examples at different places")
            outer += place.outer
        elif place != found:
            raise Mixing(f"{call.name} combines each example with others")
    return found._replace(outer=outer) if axis == found.axis else found


def _broadcast_tensors(call: Call) -> Found:
    dim = call.result[0].dim()
    tensors = list(call.tensors())
    place = broadcast(call, tensors, dim)
    return [place if place is not None else None for _ in tensors]


# --- indexing -----------------------------------------------------------------------------------------


class _Index:
    """An index as Python gives it, axis by axis."""

    def __init__(self, call: Call, x: Tensor, index: Any) -> None:
        items = list(index) if isinstance(index, tuple) else [index]
        used = sum(self._width(item) for item in items)
        full = [slice(None)] * (x.dim() - used)
        if any(item is Ellipsis for item in items):
            at = next(i for i, item in enumerate(items) if item is Ellipsis)
            items[at : at + 1] = full
        else:
            items += full
        self.call, self.x = call, x
        self.by_axis: dict[int, Any] = {}  # what happens to each axis of x
        self.to: dict[int, int] = {}  # which axis of the result a sliced axis becomes
        self.tensors: list[tuple[int, Tensor]] = []  # index tensors by their first axis
        axis = to = 0
        first, last, apart = None, None, False
        for item in items:
            if item is None or isinstance(item, bool):
                to += 1
                continue
            if isinstance(item, slice):
                self.by_axis[axis], self.to[axis] = item, to
                axis, to = axis + 1, to + 1
                continue
            if isinstance(item, int):
                self.by_axis[axis] = item
                axis += 1
                continue
            item = torch.as_tensor(item) if not isinstance(item, Tensor) else item
            self.by_axis[axis] = item
            self.tensors.append((axis, item))
            if first is None:
                first = to
            elif last != to:
                apart = True
            last = to
            axis += self._width(item)
        shape = torch.broadcast_shapes(*(self._picked(t) for _, t in self.tensors)) if self.tensors else ()
        self.dim = len(shape)
        self.at = 0 if apart else (first or 0)
        if self.tensors:
            mixed_with_numbers = any(isinstance(item, int) and not isinstance(item, bool) for item in items)
            if mixed_with_numbers and len(self.tensors) + len(self.to) < x.dim():
                raise Mixing("indexing by numbers and tensors together is not followed")
            self.to = {a: t + self.dim if apart or t >= self.at else t for a, t in self.to.items()}

    @staticmethod
    def _width(item: Any) -> int:
        if item is None or item is Ellipsis or isinstance(item, bool):
            return 0
        if isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8):
            return item.dim()
        return 1

    @staticmethod
    def _picked(t: Tensor) -> Sequence[int]:
        if t.dtype not in (torch.bool, torch.uint8):
            return t.shape
        return (int(t.sum()),)

    def place(self) -> Found:
        """Where the examples are in what the index picks."""
        call, x = self.call, self.x
        place = call.place(x)
        data = [(axis, t) for axis, t in self.tensors if call.place(t) is not None]
        if any(t.dtype in (torch.bool, torch.uint8) for _, t in self.tensors) and data:
            return self._masked(place)
        for axis, item in self.by_axis.items():
            if isinstance(item, slice) and (place is None or axis != place.axis):
                if any(isinstance(value, Count) for value in (item.start, item.stop, item.step)):
                    raise Mixing("indexing computes with the number of examples")
        if place is None:
            if not data:
                return None
            self._check_numbers(place)
            found = broadcast(call, [t for _, t in self.tensors], self.dim)
            assert found is not None
            return found.shifted(self.at)
        item = self.by_axis.get(place.axis)
        if item is None:
            raise Mixing("indexing by a constant mask along the examples")
        self._check_numbers(place)
        own = call.mark(x)
        if own is not None and own.alike and not data and place.plain and not self._is_full(place, item):
            return None  # the same for every example
        if isinstance(item, slice):
            if data:
                raise Mixing("indexing combines each example with others")
            kept = self._sliced(place, item)
            return kept._replace(axis=self.to[place.axis])
        if isinstance(item, int):
            raise Mixing("indexing takes one example out of the batch")
        found = broadcast(call, [t for _, t in self.tensors], self.dim)
        if found is None or not picks_own(call, item, place):
            raise Mixing("indexing along the examples mixes them")
        return found.shifted(self.at)

    def _check_numbers(self, place: Place | None) -> None:
        """Raises if positions of examples pick something else than their own rows."""
        for axis, t in self.tensors:
            mark = self.call.mark(t)
            if mark is not None and mark.numbers and (place is None or axis != place.axis):
                raise Mixing("indexing by the position of the examples in the batch")

    def _is_full(self, place: Place, item: Any) -> bool:
        return isinstance(item, slice) and item.indices(self.x.shape[place.axis]) == (
            *(0, self.x.shape[place.axis], 1),
        )

    def _sliced(self, place: Place, item: slice) -> Place:
        length = self.x.shape[place.axis]
        if any(isinstance(value, Tensor) for value in (item.start, item.stop, item.step)):
            raise Mixing("indexing takes some of the examples out of the batch")
        start, stop, step = slice(*(_plain(v) for v in (item.start, item.stop, item.step))).indices(length)
        if (start, stop, step) == (0, length, 1):
            return place
        if step > 1 and place.inner % step == 0 and start < step and stop > length - step:
            return place._replace(inner=place.inner // step)
        size = place.length(self.call.n) * place.inner
        if step != 1 or start % size or stop % size or place.outer == 1:
            raise Mixing("indexing takes some of the examples out of the batch")
        return place._replace(outer=max(0, stop - start) // size)

    def _masked(self, place: Place | None) -> Found:
        """Rows that a mask chooses by the values of each example."""
        call = self.call
        if len(self.tensors) != 1:
            raise Mixing("indexing by a mask and other tensors is not followed")
        ((first, mask),) = self.tensors
        own = call.place(mask)
        if place is None or own is None or place != own.shifted(first):
            raise Mixing("indexing by a mask combines each example with others")
        return Place(self.at, 1, 1, chosen_rows(call, mask, own))


def picks_own(call: Call, index: Tensor, place: Place) -> bool:
    """Tells whether an index along the examples picks, for each, rows that belong to it.

    That is known of a permutation, and of rows that a mask chose; any other index tensor is looked at.
    """
    mark = call.mark(index)
    if mark is None or mark.place is None:
        return False
    if mark.picks is not None and mark.picks.source == place._replace(axis=0):
        return True
    own = mark.place
    picked = index.detach() // place.inner % place.length(call.n)
    if place.rows is not None:
        picked = place.rows.owner[picked]
    rows = torch.arange(own.length(call.n), device=index.device) if own.rows is None else own.rows.owner
    rows = rows.view(1, -1, 1).expand(own.outer, -1, own.inner).reshape(-1)
    shape = [1] * index.dim()
    shape[own.axis] = len(rows)
    return bool((picked == rows.view(shape)).all())


def chosen_rows(call: Call, mask: Tensor, place: Place) -> Rows:
    """The rows where a mask is true, in order; the same for one mask asked twice."""
    mark = call.mark(mask)
    assert mark is not None
    if mark.chosen is None:
        digit = mask.detach().nonzero()[:, place.axis] // place.inner % place.length(call.n)
        owner = digit if place.rows is None else place.rows.owner[digit]
        mark.chosen = Rows(owner, call.n, chosen=True)
    return mark.chosen


def _plain(value: Any) -> Any:
    return int.__index__(value) if isinstance(value, Count) else value


def _getitem(call: Call) -> Found:
    return _Index(call, call.args[0], call.args[1]).place()


def _setitem(call: Call) -> Found:
    """Writes into a part: what is written must belong to the examples that it is written to."""
    x, index, value = call.args
    picked = _Index(call, x, index)
    if isinstance(value, Count):
        raise Mixing("a number of examples is written into a tensor")
    own = call.place(value)
    place = call.place(x)
    if place is not None:
        found = picked.place()
        if not isinstance(value, Tensor):
            return place
        assert isinstance(found, Place)
        dim = picked.dim + len(picked.to) + sum(item is None for item in _items(index))
        if own is not None and own.shifted(dim - value.dim()) != found:
            raise Mixing("writing to an index combines each example with others")
        if own is None:
            call.constant(value, found.axis - dim + value.dim(), found)
        return place
    if own is None:
        if any(call.place(t) is not None for _, t in picked.tensors):
            raise Mixing("writing to a constant where the data says")
        return None
    if picked.tensors:
        raise Mixing("writing data into a constant by index tensors is not followed")
    dim = len(picked.to) + sum(item is None for item in _items(index))
    target = own.axis + dim - value.dim()
    axis = next((a for a, to in picked.to.items() if to == target), None)
    if axis is None or picked._sliced(own._replace(axis=axis), picked.by_axis[axis]) != own._replace(axis=axis):
        raise Mixing("writing data into a part of a constant along the examples")
    call.constant(x, axis, own)
    return own._replace(axis=axis)


def _items(index: Any) -> Sequence[Any]:
    return index if isinstance(index, tuple) else (index,)


def _nonzero(call: Call, as_tuple: bool | None = None) -> Found:
    mask = call.first
    place = call.place(mask)
    if place is None:
        return None
    rows = chosen_rows(call, mask, place)
    plain = Place(0, 1, 1, rows)
    picking = Mark(call.owner, plain, picks=Picks(place._replace(axis=0), rows), numbers=True)
    if call.kwargs.get("as_tuple", False) if as_tuple is None else as_tuple:
        return [picking if axis == place.axis else plain for axis in range(mask.dim())]
    return picking if mask.dim() == 1 else Mark(call.owner, plain, numbers=True)


def _masked_select(call: Call) -> Found:
    x, mask = call.first, call.get(1, "mask")
    place = broadcast(call, (x, mask), max(x.dim(), mask.dim()))
    if place is None or call.place(mask) is None or mask.shape != x.shape:
        raise Mixing("masked_select is followed only with a mask of the data's own shape")
    return Place(0, 1, 1, chosen_rows(call, mask, place))


def _gather(call: Call) -> Found:
    x, dim, index = call.first, call.get(1, "dim"), call.get(2, "index", "indices")
    if call.name == "take_along_dim":
        index, dim = call.get(1, "indices"), call.get(2, "dim")
    if dim is None:
        raise Mixing(f"{call.name} without a dim is not followed")
    axis = _dims(dim, x.dim())[0]
    place = broadcast(call, (x, index), x.dim())
    if place is not None and place.axis == axis:
        raise Mixing(f"{call.name} runs along the examples")
    if place is not None and x.shape[place.axis] != index.shape[place.axis] and call.name == "gather":
        raise Mixing("gather takes some of the examples out of the batch")
    return place


def _index_select(call: Call) -> Found:
    x, dim, index = call.first, call.get(1, "dim"), call.get(2, "index")
    axis = _dims(dim, x.dim())[0]
    place, own = call.place(x), call.place(index)
    if place is None:
        mark = call.mark(index)
        if mark is not None and mark.numbers:
            raise Mixing("index_select by the position of the examples in the batch")
        return None if own is None else own.shifted(axis)
    if place.axis != axis:
        if own is not None:
            raise Mixing("index_select combines each example with others")
        return place
    if own is None or not picks_own(call, index, place):
        raise Mixing("index_select along the examples mixes them")
    return own.shifted(axis)


def _index_add(call: Call) -> Found:
    """`x.index_add(dim, index, source)`, and `index_copy`."""
    x, dim, index, source = call.first, call.get(1, "dim"), call.get(2, "index"), call.get(3, "source")
    axis = _dims(dim, x.dim())[0]
    place, own = call.place(x), call.place(source)
    if place is None and own is None and call.place(index) is None:
        return None
    if place is None or place.axis != axis:
        if call.place(index) is not None:
            raise Mixing(f"{call.name} combines each example with others")
        found = own if place is None else place
        assert found is not None
        if found.axis == axis or (own is not None and own != found):
            raise Mixing(f"{call.name} combines each example with others")
        for t in (x, source):
            if call.place(t) is None:
                call.constant(t, found.axis, found)
        return found
    rows = call.place(index)
    if rows is None or not picks_own(call, index, place):
        raise Mixing(f"{call.name} along the examples mixes them")
    if own is None or own != rows.shifted(axis):
        raise Mixing(f"{call.name} adds rows to other examples' rows")
    return place


def _index_filled(call: Call) -> Found:
    x, dim, index, value = call.first, call.get(1, "dim"), call.get(2, "index"), call.get(3, "value")
    if call.place(index) is not None or call.place(value) is not None:
        raise Mixing("index_fill combines each example with others")
    return along(call, x, dim)


def _scatter(call: Call) -> Found:
    x, dim, index = call.first, call.get(1, "dim"), call.get(2, "index")
    source = call.get(3, "src", "value")
    if isinstance(source, Count):
        raise Mixing(f"{call.name} computes with the number of examples")
    axis = _dims(dim, x.dim())[0]
    mark = call.mark(index)
    if x.dim() == 1 and mark is not None and mark.picks is not None and isinstance(source, Tensor):
        written = call.mark(source)
        inverse = _inverse(mark.picks, call)
        if inverse is not None and written is not None and written.picks == Picks(FIRST, None):
            return inverse  # the places of a permutation: it is undone
    rows = _scatter_rows(call, x, index, source, axis)
    if rows is not None:
        return rows
    tensors = [x, index, *([source] if isinstance(source, Tensor) else [])]
    place = broadcast(call, tensors, x.dim())
    if place is None:
        return None
    if place.axis == axis:
        raise Mixing(f"{call.name} runs along the examples")
    if any(t.shape[place.axis] != x.shape[place.axis] for t in tensors):
        raise Mixing(f"{call.name} writes to some of the examples")
    return place


def _scatter_rows(call: Call, x: Tensor, index: Tensor, source: Any, axis: int) -> Place | None:
    """A scatter along the examples, where each row is written to a row of its own example."""
    place, own = call.place(x), call.place(index)
    if place is None or own is None or place.axis != axis or own.axis != axis:
        return None
    if isinstance(source, Tensor) and call.place(source) != own:
        return None
    return place if picks_own(call, index, place) else None


# --- constants made with the number of examples -------------------------------------------------------


def _filled(call: Call) -> Found:
    """Constants of one value, or of random ones, with the number of examples among their sizes."""
    given = call.kwargs.get("size", call.args[0] if call.args and not isinstance(call.args[0], int) else None)
    sizes = list(given) if given is not None else [v for v in call.args if isinstance(v, int | Tensor)]
    for axis, size in enumerate(sizes):
        if isinstance(size, Tensor):
            mark = call.mark(size)
            if mark is not None and mark.why == PACKED_SIZES and int(size) == call.n:
                sizes[axis] = Count(1, call.unit)
            elif mark is not None:
                raise Mixing(f"{call.name} reads a size from the batch")
    value = call.kwargs.get("fill_value", call.args[1] if call.name == "full" and len(call.args) > 1 else None)
    if isinstance(value, Count):
        raise Mixing(f"{call.name} computes with the number of examples")
    return _alike(call, over_examples(call, sizes))


def _alike(call: Call, place: Place | None) -> Mark | None:
    return None if place is None else Mark(call.owner, place, alike=not call.name.startswith("rand"))


def _new_filled(call: Call) -> Found:
    sizes = _sizes(call)
    if call.name == "new_full":
        sizes = call.get(1, "size")
        if isinstance(call.get(2, "fill_value"), Count):
            raise Mixing("new_full computes with the number of examples")
    return _alike(call, over_examples(call, sizes))


def _arange(call: Call) -> Found:
    counts = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, Count)]
    if not counts:
        return None
    plain = len(call.args) == 1 or (len(call.args) == 2 and call.args[0] == 0)
    if not plain or counts[0].unit is not call.unit or "step" in call.kwargs:
        raise Mixing("arange makes a constant that differs by the examples' position")
    place = Place(0, 1, counts[0].times)
    return Mark(call.owner, place, numbers=True, picks=Picks(place, None))


def _like(call: Call) -> Found:
    place = call.place(call.first)
    return None if place is None else Mark(call.owner, place, alike=True)


# --- the inner gradient -------------------------------------------------------------------------------


def _inner_gradient(call: Call) -> Found:
    """`torch.autograd.grad` of a sum over the examples, with respect to data."""
    outputs, inputs = call.get(0, "outputs"), call.get(1, "inputs")
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    weights = call.get(2, "grad_outputs")
    weights = [weights] if weights is None or isinstance(weights, Tensor) else list(weights)
    for i, output in enumerate(outputs):
        mark = call.mark(output)
        weight = weights[i] if i < len(weights) else None
        if mark is not None and mark.total and weight is None:
            continue
        if call.place(output) is None or (weight is not None and call.place(weight) != call.place(output)):
            raise Mixing("autograd.grad differentiates something else than a sum over the examples")
    places: list[Place | Mark | None] = []
    for x in inputs:
        place = call.place(x)
        if place is None:
            raise Mixing("autograd.grad differentiates with respect to something that is not data")
        places.append(place)
    return places


# --- the table ----------------------------------------------------------------------------------------

Rule: TypeAlias = Callable[[Call], Found]

_UNARY = """
abs absolute acos acosh angle asin asinh atan atanh arccos arccosh arcsin arcsinh arctan arctanh bernoulli
bitwise_not ceil celu conj cos cosh deg2rad digamma elu erf erfc erfinv exp exp2 expm1 expit fix floor frac gelu
hardshrink hardsigmoid hardswish hardtanh i0 i0e i1 i1e isfinite isinf isnan isneginf isposinf isreal leaky_relu
lgamma log log10 log1p log2 log_ndtr logical_not logit logsigmoid mish nan_to_num ndtr ndtri neg negative positive
rad2deg reciprocal relu relu6 round rrelu rsqrt selu sgn sigmoid sign signbit silu sin sinc sinh softplus
softshrink softsign sqrt square tan tanh tanhshrink threshold trunc __abs__ __invert__ __neg__ __pos__
"""

_BINARY = """
add addcdiv addcmul atan2 arctan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor clamp
clamp_max clamp_min clip copysign div divide eq float_power floor_divide fmax fmin fmod ge greater
greater_equal gt heaviside hypot isclose le ldexp lerp less less_equal logaddexp logaddexp2 logical_and logical_or
logical_xor lt masked_fill maximum minimum mul multiply ne nextafter not_equal polygamma pow remainder rsub sub
subtract true_divide xlog1py xlogy zeta
__add__ __and__ __div__ __eq__ __floordiv__ __ge__ __gt__ __le__ __lshift__ __lt__ __mod__ __mul__ __ne__ __or__
__pow__ __radd__ __rand__ __rdiv__ __rfloordiv__ __rmod__ __rmul__ __ror__ __rpow__ __rshift__ __rsub__ __rtruediv__
__rxor__ __sub__ __truediv__ __xor__
"""

_CASTS = """
alias bfloat16 bool byte char clone contiguous cpu cuda detach double float half int long requires_grad_
short to type type_as resolve_conj resolve_neg
"""

TABLE: dict[Any, Rule] = {}
"""The rule of each function, by the function itself."""

KEEPS_VALUES: set[Any] = set()
"""Functions that move values and do not change them, so that an index tensor still picks the same."""

INDEXING: set[Any] = set()
"""Functions whose rules know what positions of examples mean among their arguments."""

MAKES: set[Any] = set()
"""Functions that make a new constant."""

_HOMES = (
    torch.Tensor,
    torch,
    F,
    torch._C._nn,
    torch.special,
    torch.linalg,
    torch.fft,
    torch._VF,
)


def _rows(names: str, rule: Rule, *, values: bool = False, makes: bool = False) -> None:
    for name in names.split():
        for home in _HOMES:
            function = getattr(home, name, None)
            if not callable(function):
                continue
            TABLE[function] = rule
            if values:
                KEEPS_VALUES.add(function)
            if makes:
                MAKES.add(function)


_rows(_UNARY, _elementwise)
_rows(_BINARY, _elementwise)
_rows("where", _where)
_rows(_CASTS, _cast, values=True)
_rows("as_tensor", _cast, values=True)
_rows("clone", _cast, values=True, makes=True)
_rows("zeros_like ones_like full_like empty_like", _like, makes=True)
_rows("rand_like randn_like randint_like", _cast, makes=True)
_rows(
    "dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout native_dropout",
    _dropout,
)
_rows(
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div "
    "poisson_nll_loss soft_margin_loss",
    _pointwise_loss,
)
_rows("sum", _sum)
_rows("max min", _max)
_rows(
    "mean nanmean nansum prod amax amin argmax argmin all any logsumexp median nanmedian mode count_nonzero "
    "std var std_mean var_mean cumsum cumprod cummax cummin logcumsumexp nanmedian",
    _along(1),
)
_rows("aminmax", lambda call: along(call, call.first, call.kwargs.get("dim")))
_rows("softmax log_softmax softmin _log_softmax _softmax", _softmax)
_rows("norm vector_norm normalize", _along(2))
TABLE[F.normalize] = _along(2, default=1)
_rows("topk kthvalue", _along(2, default=-1))
_rows("sort argsort msort", _sort)
_rows("flip fliplr flipud", _flip)
_rows("roll", _along(2))
_rows("quantile nanquantile", _quantile)
_rows("glu", _glu)
_rows("diff", _diff)
_rows("fft ifft rfft irfft hfft ihfft", _along(2, default=-1))
_rows("fft2 ifft2 rfft2 irfft2", _along(2, default=(-2, -1)))
_rows("fftn ifftn rfftn irfftn", _along(2))
_rows("tril triu", _last_axes(2))
_rows("inv inverse det logdet slogdet matrix_exp pinv cholesky qr svd eigh matrix_power", _last_axes(2))
_rows("layer_norm rms_norm", _last_axes(_normalized))
_rows("pad", _pad)
_rows("matmul mm bmm mv __matmul__", _matmul)
_rows("__rmatmul__", _reversed_matmul)
_rows("addmm addmv baddbmm", _added_product)
_rows("linear", _linear)
_rows("bilinear", _bilinear)
_rows("einsum", _einsum)
_rows("scaled_dot_product_attention", _attention)
_rows("cdist", _distances)
_rows("conv1d conv_transpose1d", batch_first(1))
_rows("conv2d conv_transpose2d", batch_first(2))
_rows("conv3d conv_transpose3d", batch_first(3))
_rows("unfold", batch_first(2))
_rows("fold", batch_first(1))
TABLE[torch.Tensor.unfold] = _unfold
_rows("interpolate upsample upsample_nearest upsample_bilinear local_response_norm", batch_first())
_rows("pixel_shuffle pixel_unshuffle channel_shuffle", _last_axes(3))
for _axes in (1, 2, 3):
    _rows(
        f"max_pool{_axes}d avg_pool{_axes}d adaptive_max_pool{_axes}d adaptive_avg_pool{_axes}d lp_pool{_axes}d "
        f"max_pool{_axes}d_with_indices",
        _pool(_axes),
    )
_rows("group_norm", _group_norm)
_rows("instance_norm", _instance_norm)
_rows("batch_norm", _batch_norm)
_rows("grid_sample", _grid_sample)
_rows("multinomial", _last_axes(1))
_rows("embedding", _embedding)
_rows("embedding_bag", _embedding_bag)
_rows("one_hot", _one_hot)
_rows("cross_entropy nll_loss", _cross_entropy)
_rows("ctc_loss", _ctc_loss)
_rows("cosine_similarity", _similarity(2))
_rows("pairwise_distance", _similarity(5))
_rows("prelu", batch_first())
_rows("lstm gru rnn_tanh rnn_relu", _recurrent)
_rows("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell", _recurrent_cell)
_rows("view reshape flatten unflatten view_as reshape_as ravel", _view, values=True)
_rows("permute", _moved(_permuted), values=True)
_rows("transpose swapaxes swapdims t adjoint", _moved(_transposed), values=True)
_rows("movedim moveaxis", _moved(_movedim), values=True)
_rows("unsqueeze unsqueeze_", _unsqueeze, values=True)
_rows("squeeze", _squeeze, values=True)
_rows("expand expand_as broadcast_to", _expand, values=True)
_rows("repeat", _repeat)
_rows("tile", _tile)
_rows("repeat_interleave", _repeat_interleave, values=True)
_rows("chunk split split_with_sizes tensor_split unbind select narrow", _pieces)
_rows("stack", _stack)
_rows("cat concat concatenate", _cat)
_rows("broadcast_tensors", _broadcast_tensors)
_rows("__getitem__", _getitem, values=True)
_rows("__setitem__", _setitem)
_rows("nonzero argwhere", _nonzero)
_rows("masked_select", _masked_select)
_rows("gather take_along_dim", _gather)
_rows("index_fill", _index_filled)
_rows("index_select", _index_select)
_rows("index_add index_copy", _index_add)
_rows("scatter scatter_add scatter_reduce", _scatter)
_rows("zeros ones empty full rand randn", _filled, makes=True)
_rows("new_zeros new_ones new_empty new_full", _new_filled, makes=True)
_rows("arange", _arange, makes=True)
TABLE[torch.autograd.grad] = _inner_gradient

# Properties.
for _name in ("T", "mT", "H", "mH"):
    TABLE[getattr(torch.Tensor, _name).__get__] = _moved(_transposed)
for _name in ("data", "real", "imag"):
    TABLE[getattr(torch.Tensor, _name).__get__] = _cast
KEEPS_VALUES.add(torch.Tensor.data.__get__)

IN_PLACE: dict[Any, Rule] = {}
"""The rules of functions that work in place: those of the functions without the underscore."""

_RESHAPING = {"squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_", "swapdims_", "requires_grad_"}
for _function, _rule in list(TABLE.items()):
    _twin = f"{getattr(_function, '__name__', '')}_"
    if _twin not in _RESHAPING:
        for _home in _HOMES:
            if callable(getattr(_home, _twin, None)):
                IN_PLACE[getattr(_home, _twin)] = _rule
for _name in """
    __iadd__ __isub__ __imul__ __itruediv__ __idiv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__
    fill_ zero_ uniform_ normal_ exponential_ bernoulli_ random_
""".split():
    if hasattr(torch.Tensor, _name):
        IN_PLACE[getattr(torch.Tensor, _name)] = _elementwise
IN_PLACE[torch.Tensor.copy_] = _copied
IN_PLACE[torch.Tensor.__setitem__] = TABLE.pop(torch.Tensor.__setitem__)

for _function, _rule in (*TABLE.items(), *IN_PLACE.items()):
    if _rule in (_getitem, _setitem, _index_select, _index_add, _scatter):
        INDEXING.add(_function)

TAKES_COUNTS: set[Any] = set()
"""Functions whose rules know what a number of examples means among their arguments."""

for _function, _rule in (*TABLE.items(), *IN_PLACE.items()):
    if _rule in (
        *(_view, _expand, _repeat, _tile, _repeat_interleave, _pieces, _filled, _new_filled, _arange),
        *(_getitem, _setitem),
    ):
        TAKES_COUNTS.add(_function)
