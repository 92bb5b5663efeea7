"""Looks into the arguments and results of a call: the tensors in them, and the numbers of examples."""

from typing import Any

import torch
from torch import Tensor

from adamas.engines.bookkeeping.counts import Count, Shape

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
    """Returns a copy with plain numbers instead of `Count`s."""
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


def bound(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Returns the arguments in the order of their names, None for those that were not given."""
    given = dict(zip(names, args, strict=False)) | kwargs
    return [given.get(name) for name in names]
