"""Stand-ins that give each example a copy of the weight, as a view, whose gradient is that of the example."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from adamas.engines.bookkeeping import functions
from adamas.engines.bookkeeping.arguments import bound, tensors_in
from adamas.engines.bookkeeping.counts import SIZE, Count, user_line
from adamas.engines.bookkeeping.places import FIRST, Place, split
from adamas.engines.bookkeeping.records import Dense
from adamas.engines.bookkeeping.tracking import Tracker
from adamas.engines.bookkeeping.uses.common import apply, wide
from adamas.engines.bookkeeping.uses.general import general
from adamas.errors import UnsupportedError


def copies_of(recorder: Tracker, p: Tensor, shape: tuple[int, ...], function: str) -> Tensor:
    """Returns a copy of a weight for each example, in a shape that broadcasts with one example's data."""

    def put(gradients: Tensor) -> None:
        if not recorder.outside():
            recorder.add(p, Dense(wide(gradients)), function)

    result: Tensor = apply(functions.Expand, p.detach(), recorder.anchor, recorder.n, shape, put)
    return result


def expanded(
    recorder: Tracker, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """Stands in for an expansion or repetition of a weight over the examples: a copy for each."""
    p = args[0]
    given = kwargs.get("size", kwargs.get("repeats", args[1:]))
    sizes = list(given[0]) if len(given) == 1 and not isinstance(given[0], SIZE) else list(given)
    counts = [axis for axis, size in enumerate(sizes) if isinstance(size, Count)]
    new = len(sizes) - p.dim()
    (axis,) = counts if len(counts) == 1 else (-1,)
    own = (1,) * new + tuple(p.shape)
    count = sizes[axis]
    repeats = name == "repeat"
    if axis < 0 or count.unit is not recorder.unit or (own[axis] != 1 and not repeats):
        recorder.refuse_mixing(f"{name} spreads a weight over the examples by their position ({user_line()})")
    copies = copies_of(recorder, p, own, name).movedim(0, axis)  # (..., n, own[axis], ...)
    sizes[axis] = count.times
    if repeats:
        rest = [*sizes[:axis], 1, *sizes[axis:]]
        result = copies.repeat(rest).flatten(axis, axis + 1)
        inner = count.times * own[axis]
    else:
        rest = [*sizes[:axis], recorder.n, *sizes[axis:]]
        result = copies.expand(rest).flatten(axis, axis + 1)
        inner = count.times
    recorder.set_mark(result, Place(axis, 1, inner))
    return result


def elementwise(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Stands in for an addition, product and the like: copies of the weight broadcast as the weight does."""
    name = getattr(func, "__name__", str(func))
    tensors = tensors_in((args, kwargs))
    dim = max(t.dim() for t in tensors)
    places = {recorder.place(t).shifted(dim - t.dim()) for t in tensors if recorder.is_data(t)}
    if len(places) != 1:
        recorder.refuse_mixing(f"{name} combines each example with others ({user_line()})")
    (place,) = places
    axis = place.axis
    weights = [t for t in tensors if recorder.is_tracked(t)]
    if any(t.dim() >= dim - axis and t.shape[axis - dim] != 1 for t in weights):
        raise UnsupportedError(
            f"{recorder.names_in(weights)} takes part in {name} with data, and is as long as the batch. Give "
            "it one entry on the example axis, or use engine='vmap'."
        )
    simple = place == FIRST

    def arranged(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if recorder.is_tracked(value):
            shape = (1,) * (dim - value.dim()) + tuple(value.shape)
            own = shape[:axis] + shape[axis + 1 :]
            if simple:
                return copies_of(recorder, value, own, name)
            spread = (*shape[:axis], 1, 1, *shape[axis + 1 :])  # for outer and inner, without the examples
            copies = copies_of(recorder, value, spread, name)
            if place.rows is not None:
                copies = copies.index_select(0, place.rows.owner)
            return copies.movedim(0, axis + 1)
        if simple:
            return value
        value = value.reshape((1,) * (dim - value.dim()) + tuple(value.shape))
        if value.shape[axis] == 1:
            return value.unsqueeze(axis).unsqueeze(axis)
        return split(value, place, recorder.n)

    result = func(*map(arranged, args), **{key: arranged(value) for key, value in kwargs.items()})
    return result if simple else result.flatten(axis, axis + 2)


def prelu(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Stands in for a leaky ReLU with a learned slope."""
    x, w = bound(("input", "weight"), args, kwargs)
    with recorder:
        slope = w.view(1, -1, *[1] * (x.dim() - 2)) if w.numel() > 1 else w
        return torch.where(x > 0, x, x * slope)


def attention(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Stands in for attention with a learned bias as its mask: a copy of the bias for each example."""
    if not _learned_mask(recorder, args, kwargs):
        return general(recorder, func, args, kwargs)
    given = dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)) | kwargs
    mask, dim = given["attn_mask"], given["query"].dim()
    places = {
        recorder.place(t).shifted(dim - t.dim()) for t in list(given.values())[:3] if recorder.is_data(t)
    }
    if len(places) != 1:
        recorder.refuse_mixing(
            f"scaled_dot_product_attention combines each example with others ({user_line()})"
        )
    (place,) = places
    shape = (1,) * (dim - mask.dim()) + tuple(mask.shape)
    if place.axis >= dim - 2 or shape[place.axis] != 1 or place.rows is not None:
        recorder.refuse_mixing(f"a learned mask differs by the examples' position ({user_line()})")
    axis = place.axis
    spread = (*shape[:axis], 1, 1, *shape[axis + 1 :])
    copies = copies_of(recorder, mask, spread, "scaled_dot_product_attention").movedim(0, axis + 1)
    whole = [-1] * copies.dim()
    whole[axis], whole[axis + 2] = place.outer, place.inner
    given["attn_mask"] = copies.expand(whole).flatten(axis, axis + 2)
    recorder.set_mark(given["attn_mask"], place)
    rest = {"dropout_p": args[4]} if len(args) > 4 else {}
    rest |= {"is_causal": args[5]} if len(args) > 5 else {}
    with recorder:
        return F.scaled_dot_product_attention(**given, **rest)


def _learned_mask(recorder: Tracker, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tells whether the mask is a followed weight, and nothing else is."""
    mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
    others = [*args[:3], *(kwargs.get(key) for key in ("query", "key", "value"))]
    return recorder.is_tracked(mask) and not any(map(recorder.is_tracked, others))
