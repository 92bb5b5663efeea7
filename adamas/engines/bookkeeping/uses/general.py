"""The stand-in for any function that has none of its own."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from adamas.engines.bookkeeping import functions
from adamas.engines.bookkeeping.counts import user_line
from adamas.engines.bookkeeping.derived import weights_of
from adamas.engines.bookkeeping.general import Call, General
from adamas.engines.bookkeeping.places import FIRST, Place, split
from adamas.engines.bookkeeping.separation import TABLE, Mixing
from adamas.engines.bookkeeping.separation import Call as Seen
from adamas.engines.bookkeeping.tracking import Tracker
from adamas.engines.bookkeeping.uses.common import apply, detached


def general(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Stands in for any function of weights and data, by vector-Jacobian products."""
    name = getattr(func, "__name__", str(func))
    flat, tree = tree_flatten((args, kwargs))
    weights, data, places = [], [], {}
    for i, value in enumerate(flat):
        if recorder.is_tracked(value):
            weights.append(i)
        elif isinstance(value, Tensor) and recorder.is_data(value):
            data.append(i)
            places[i] = recorder.place(value)
    tracked = {i: flat[i] for i in weights}
    title = f"{recorder.names_in(args, kwargs)} through {name}"
    to = _result_place(recorder, func, name, args, kwargs, title)
    values = [detached(value) if i in tracked else value for i, value in enumerate(flat)]
    if to != FIRST or any(place != FIRST for place in places.values()):
        func = _with_examples_first(func, tree, places, to, recorder.n)
        for i, place in places.items():
            values[i] = _examples_first(flat[i], place, recorder.n)
    inputs = [values[i] for i in data]
    call = Call(func, values, tree, data, data, title)

    def put(call: Call, output: tuple[Tensor, dict[int, Tensor]], e: Tensor) -> None:
        if recorder.outside():
            return
        for i, weight in tracked.items():
            if weights_of(output[0], {output[1][i]}):  # not for `x.type_as(weight)`
                recorder.add(weight, General(call, i, e, output), name)

    result = apply(functions.Apply, recorder.anchor, call, weights, put, *inputs)
    if to == FIRST:
        return result
    return _examples_back(result, to)


def _result_place(
    recorder: Tracker, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], title: str
) -> Place:
    """Finds where the examples will be in the result of a call, by the table."""
    with torch.no_grad():
        result = func(*args, **kwargs)
    rule = TABLE.get(func)
    if rule is None or not isinstance(result, Tensor):
        recorder.refuse_mixing(f"{title} is not known to treat each example by itself ({user_line()})")
    try:
        found = rule(Seen(name, args, kwargs, result, recorder.mark, recorder.unit, recorder.unit))
    except Mixing as error:
        recorder.refuse_mixing(f"{error} ({user_line()})")
    if not isinstance(found, Place) or found.rows is not None:
        recorder.refuse_mixing(f"{title} leaves the examples at no place of their own ({user_line()})")
    return found


def _examples_first(t: Tensor, place: Place, n: int) -> Tensor:
    return split(t, place, n).movedim(place.axis + 1, 0)


def _examples_back(t: Tensor, place: Place) -> Tensor:
    return t.movedim(0, place.axis + 1).flatten(place.axis, place.axis + 2)


def _with_examples_first(func: Any, tree: Any, places: dict[int, Place], to: Place, n: int) -> Any:
    """Returns the function with the examples first in its data and in its result."""

    def moved(*args: Any, **kwargs: Any) -> Tensor:
        flat, _ = tree_flatten((args, kwargs))
        flat = [_examples_back(t, places[i]) if i in places else t for i, t in enumerate(flat)]
        args, kwargs = tree_unflatten(flat, tree)
        result = func(*args, **kwargs)
        count = result.shape[to.axis] // (to.outer * to.inner)
        return _examples_first(result, to, count)

    return moved
