"""Sums of squares that do not lose small terms, and nested batches of tensors."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

# A float32 sum of 10M squares is low by 7e-4 and its example would be clipped too little. Sums over
# blocks of this length, added up in float64, are off by about 1e-8, at the same speed.
_BLOCK = 2048

# Below it, float32 squares near the smallest float32 number may have become 0.
_LEAST_SQUARE = 1e-24


def squared_norms(rows: Tensor) -> Tensor:
    """Squared L2 norm of each `rows[i]`, all other axes flattened, in float64.

    Guarantee: the relative error stays near 1e-8 for float32 rows of any length, and a finite row
    has a finite result even where its square overflows float32, and one above 0 where it underflows.
    """
    n = rows.shape[0]
    flat = rows.permute(0, *memory_order(rows)).reshape(n, rows.shape[1:].numel())
    if flat.dtype == torch.float64:
        return flat.square().sum(1)
    if flat.dtype != torch.float32:
        flat = flat.float()
    total = _sums_of_squares(flat)
    if flat.numel():
        low, high = map(float, total.aminmax())  # NaN propagates to both
        if not (low >= _LEAST_SQUARE and high < math.inf):
            extreme = ~total.isfinite() | (total < _LEAST_SQUARE)
            extreme &= (flat.amax(1) != 0) | (flat.amin(1) != 0)  # rows of zeros are right
            if extreme.any():
                total[extreme] = flat[extreme].double().square().sum(1)
    return total


def _sums_of_squares(rows: Tensor) -> Tensor:
    """The sum of the squares of each float32 row, in float64, where no square is too large or too small."""
    n, width = rows.shape
    whole = width - width % _BLOCK
    if not whole:
        short: Tensor = torch.linalg.vector_norm(rows, dim=1).double().square_()
        return short
    blocks = rows[:, :whole].reshape(n, whole // _BLOCK, _BLOCK)
    total: Tensor = torch.linalg.vector_norm(blocks, dim=2).double().square_().sum(1)
    if whole < width:
        total += torch.linalg.vector_norm(rows[:, whole:], dim=1).double().square_()
    return total


def memory_order(rows: Tensor) -> list[int]:
    """The axes after the first, in the order in which they lie in memory."""
    axes = list(range(1, rows.dim()))
    return axes if rows.is_contiguous() else sorted(axes, key=rows.stride, reverse=True)


def total(values: Tensor) -> float:
    """The sum of all values, in float64 but for sums over short blocks: a cast of all would cost a copy."""
    flat = values.reshape(-1)
    if flat.dtype == torch.float64:
        return float(flat.sum())
    whole = len(flat) - len(flat) % _BLOCK
    blocks = flat[:whole].view(-1, _BLOCK).sum(1, dtype=torch.float32)
    return float(blocks.double().sum()) + float(flat[whole:].sum(dtype=torch.float32))


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which sums over examples are kept: float32 for the 16-bit types."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


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
