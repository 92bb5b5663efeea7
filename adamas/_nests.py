"""Walks nested batches of tensors: mappings, lists and tuples."""

import copy
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from adamas.errors import UnsupportedError


def map_tensors(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Applies `function` to each tensor of a nest of mappings, lists and tuples, and keeps the nest.

    A mapping of a user's class, such as a tokenizer's batch, keeps its class. Its other attributes, which
    cannot be split into examples, become None.
    """
    return map_leaves(Tensor, function, batch)


def map_leaves(kind: type | tuple[type, ...], function: Callable[[Any], Any], batch: Any) -> Any:
    """Applies `function` to each value of a kind in a nest, as `map_tensors` does to tensors."""
    if isinstance(batch, kind):
        return function(batch)
    if isinstance(batch, Mapping):
        mapped = {key: map_leaves(kind, function, value) for key, value in batch.items()}
        if type(batch) is dict or not isinstance(batch, dict | UserDict):
            return mapped
        clone = copy.copy(batch)
        slots = {name for base in type(clone).__mro__ for name in slots_of(base)}
        for name in slots | getattr(clone, "__dict__", {}).keys():
            if name != "data" or isinstance(clone, dict):  # where a UserDict has its items
                setattr(clone, name, None)
        clone.update(mapped)
        return clone
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_leaves(kind, function, value) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map_leaves(kind, function, value) for value in batch)
    return batch


def slots_of(kind: type) -> list[str]:
    """Returns the slots of a class, by the names of its attributes."""
    slots = vars(kind).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    return [
        f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
        for name in names
        if name not in ("__dict__", "__weakref__")
    ]


def named_leaves(batch: Any, name: str = "batch") -> Iterator[tuple[str, Any]]:
    """Yields everything in a nest that is no container, with the expression that reaches it (`batch[0]`)."""
    if isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from named_leaves(value, f"{name}[{key!r}]")
    elif isinstance(batch, list | tuple):
        for index, value in enumerate(batch):
            yield from named_leaves(value, f"{name}[{index}]")
    else:
        yield name, batch


def named_tensors(batch: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields each tensor of a nest with the expression that reaches it."""
    return ((name, leaf) for name, leaf in named_leaves(batch) if isinstance(leaf, Tensor))


def batch_length(batch: Any) -> int:
    """Returns the number of examples of a batch: the first length of every tensor in it.

    Raises:
        UnsupportedError: If something in it is neither a tensor nor None.
        ValueError: If there is no tensor, or if the tensors' first lengths differ.
    """
    lengths: dict[str, int | None] = {}
    for name, leaf in named_leaves(batch):
        if isinstance(leaf, Tensor):
            lengths[name] = leaf.shape[0] if leaf.dim() else None
        elif leaf is not None:
            raise UnsupportedError(
                f"{name} is of type {type(leaf).__name__}, which cannot be split into examples: each "
                "would see what belongs to the others. Make it a batch-first tensor in your collate_fn "
                "(texts become tokens, numbers a tensor of one value per example), or leave it out."
            )
    if not lengths:
        raise ValueError(f"Expected a batch with at least one tensor, got {type(batch).__name__}.")
    first = next(iter(lengths.values()))
    for name, length in lengths.items():
        if length is None or length != first:
            raise ValueError(
                f"Expected every tensor of a batch to be batch-first; {name} has another first length than "
                f"{next(iter(lengths))}. Put the example axis first in your collate_fn."
            )
    assert first is not None
    return first


def check_rows(data: Any, n: int) -> Any:
    """Returns a batch whose tensors have one row per example; raises otherwise."""
    if batch_length(data) != n:
        raise ValueError(
            "Expected every tensor of a batch to be batch-first, with one row per requested example, but "
            "collate_fn made another number of rows."
        )
    return data
