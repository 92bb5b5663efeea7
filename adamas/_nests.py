"""Nested batches of tensors: mappings, lists and tuples."""

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor


def map_tensors(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """The same nest of mappings, sequences and tuples with `function` applied to each tensor."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        mapped = {key: map_tensors(function, value) for key, value in batch.items()}
        if type(batch) is dict or not isinstance(batch, MutableMapping):
            return mapped
        clone = copy.copy(batch)  # keeps the kind: attributes of a tokenizer's batch stay
        clone.update(mapped)
        return clone
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(function, value) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map_tensors(function, value) for value in batch)
    return batch


def named_tensors(batch: Any, name: str = "batch") -> Iterator[tuple[str, Tensor]]:
    """Each tensor of a nest with the expression that reaches it, such as `batch[0]`."""
    if isinstance(batch, Tensor):
        yield name, batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from named_tensors(value, f"{name}[{key!r}]")
    elif isinstance(batch, list | tuple):
        for index, value in enumerate(batch):
            yield from named_tensors(value, f"{name}[{index}]")


def batch_length(batch: Any) -> int:
    """The number of examples of a batch: the first length of every tensor in it.

    Raises:
        ValueError: If there is no tensor, or if the tensors' first lengths differ.
    """
    lengths = {name: value.shape[0] if value.dim() else None for name, value in named_tensors(batch)}
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
