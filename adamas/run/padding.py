"""Compares the losses of padded rows with those of the same examples alone, while a run trains."""

from typing import Any

from torch import nn

from adamas._guards.collate import Sizes, padded_and_alone, padding_of
from adamas._guards.state import unchanged
from adamas.engines import Loss
from adamas.engines.probes import PADDED_EXAMPLES, compare_padded, unchanged_generator

_REGULARLY = 32  # micro-batches with padding between two comparisons, once training has begun


class PaddingGuard:
    """Checks that padding does not change losses, also while the weights change.

    It compares micro-batches 1, 2, 4, 8 and 16 with padding, then every 32nd, and those that pad at least
    twice as far as any before.
    """

    def __init__(self) -> None:
        self._compared = 0  # the longest padding so far
        self._seen = 0  # micro-batches with padding

    def check(self, model: nn.Module, loss: Loss, data: Any, sizes: Sizes) -> None:
        """Raises if the losses of a micro-batch depend on its padding."""
        longest = max(padding_of(data, sizes), default=0)
        if not longest:
            return
        self._seen += 1
        regular = self._seen % _REGULARLY == 0 or (self._seen < _REGULARLY and self._seen.bit_count() == 1)
        if not regular and longest < 2 * self._compared:
            return
        rows = padded_and_alone(data, sizes, PADDED_EXAMPLES)
        if rows is not None:
            with unchanged(model, loss), unchanged_generator():
                compare_padded(model, loss, *rows)
        self._compared = max(longest, self._compared)
