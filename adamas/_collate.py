"""Does a collate_fn keep the examples of a batch apart?"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from adamas._nests import named_leaves
from adamas._streams import global_randomness
from adamas.errors import UnsupportedError
from adamas.loading import Loader, check_rows

MOST_EXAMPLES = 256
"""How many examples `check_collate` should get at most, to stay cheap."""

# Batches that are compared, each with a random state of its own: as many of all examples as of a quarter.
_BATCHES = 8
# Random states in which one example alone must always give the same.
_STATES = 64

_MIXED = (
    "collate_fn mixes the examples of a batch: an example's row of {name} is another one when the example is "
    "alone in its batch, so that no clipping bounds its influence. Let collate_fn stack the examples in "
    "their order, padded at the ends of axes by one constant value, and nothing else: no mixing, no repeated "
    "rows, no statistics over the batch. What changes a single example belongs in the data set's __getitem__."
)

Collate = Callable[[list[Any]], Any]
_Pads = dict[str, list[Tensor]]


def check_collate(loader: Loader, indices: Sequence[int]) -> None:
    """Raises if the loader's collate_fn mixes or repeats examples.

    Each row of a batch must be what collate_fn makes of its example alone, but for padding by one value at
    the ends of axes, or at their starts. A collate_fn that is random for one example alone is accepted: it
    cannot be compared.

    Args:
        loader: The loader of a run.
        indices: The examples of the batch that is looked at.

    Raises:
        UnsupportedError: If a row depends on the other examples.
    """
    collate = loader.collate_fn
    if collate is None or collate is default_collate or not len(indices):
        return
    examples = [loader.dataset[int(i)] for i in indices]
    alone = [_collated(collate, [example], 0) for example in examples]
    pads: _Pads = {}
    for state in range(_BATCHES):
        quarter = range(state % 4, len(examples), 4)
        rows = quarter if state >= _BATCHES // 2 and len(quarter) else range(len(examples))
        together = _collated(collate, [examples[row] for row in rows], state)
        for place, row in enumerate(rows):
            name = _difference(together, place, alone[row], pads)
            if name is None:
                continue
            if _is_random(collate, examples[row]):
                return
            raise UnsupportedError(_MIXED.format(name=name))


def together_and_alone(loader: Loader, indices: Sequence[int]) -> tuple[Any, list[Any]] | None:
    """Collates some examples as a batch, and each as a batch of one; None where that cannot be compared."""
    collate = loader.collate_fn
    if collate is None or collate is default_collate or not len(indices):
        return None
    examples = [loader.dataset[int(i)] for i in indices]
    if _is_random(collate, examples[0]):
        return None
    groups = [examples, *([example] for example in examples)]
    together, *alone = (loader.check(_collated(collate, group, 0), np.arange(len(group))) for group in groups)
    return together, alone


def _collated(collate: Collate, examples: list[Any], state: int) -> Any:
    with global_randomness(state):
        return check_rows(collate(examples), len(examples))


def _is_random(collate: Collate, example: Any) -> bool:
    """Whether collate_fn makes different batches of one example."""
    first = _collated(collate, [example], 0)
    return any(
        _difference(_collated(collate, [example], state), 0, first, {}) is not None
        for state in range(1, _STATES)
    )


def _difference(together: Any, place: int, alone: Any, pads: _Pads) -> str | None:
    """The name of a part of the batch whose row is not that of the example alone."""
    rows, single = dict(named_leaves(together)), dict(named_leaves(alone))
    for name in {**rows, **single}:
        a, b = rows.get(name), single.get(name)
        if a is None and b is None:
            continue
        if a is None or b is None or not _agree(a[place], b[0], pads.setdefault(name, [])):
            return name
    return None


def _agree(a: Tensor, b: Tensor, pads: list[Tensor]) -> bool:
    """Whether two rows are equal where they overlap, and one known value elsewhere."""
    if a.dtype != b.dtype or a.dim() != b.dim():
        return False
    shape = [min(lengths) for lengths in zip(a.shape, b.shape, strict=True)]
    for overlap in (_first, _last):  # padded at the ends, or at the starts
        mine, theirs = overlap(a, shape), overlap(b, shape)
        if _equal(a[mine], b[theirs]) and _is_padding(a, mine, pads) and _is_padding(b, theirs, pads):
            return True
    return False


def _first(x: Tensor, shape: list[int]) -> tuple[slice, ...]:
    return tuple(slice(0, length) for length in shape)


def _last(x: Tensor, shape: list[int]) -> tuple[slice, ...]:
    return tuple(slice(full - length, full) for full, length in zip(x.shape, shape, strict=True))


def _is_padding(x: Tensor, kept: tuple[slice, ...], pads: list[Tensor]) -> bool:
    """Whether all beside the kept part is the value with which this part of a batch is padded."""
    outside = torch.ones(x.shape, dtype=torch.bool)
    outside[kept] = False
    rest = x[outside]
    if not len(rest):
        return True
    value = pads[0] if pads else rest[0]
    if not _equal(rest, value.expand_as(rest)):
        return False
    pads[:] = [value]
    return True


def _equal(a: Tensor, b: Tensor) -> bool:
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    rounding = 100 * torch.finfo(a.dtype).eps
    return torch.allclose(a, b, rtol=rounding, atol=torch.finfo(a.dtype).tiny, equal_nan=True)
