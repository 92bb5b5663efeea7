"""Compares the losses of padded rows with those of the same examples alone, while a run trains."""

from typing import Any

from torch import nn

from adamas._guards.collate import Sizes, padded_and_alone, padding_of
from adamas._guards.state import unchanged
from adamas.engines import Loss
from adamas.engines.probes import PADDED_EXAMPLES, compare_padded, unchanged_generator


class PaddingGuard:
    """Sees that padding does not change losses: on the first batch with padding, and at twice as much."""

    def __init__(self) -> None:
        self._compared = 0  # the longest padding so far

    def check(self, model: nn.Module, loss: Loss, data: Any, sizes: Sizes) -> None:
        """Raises if the losses of a micro-batch depend on its padding."""
        longest = max(padding_of(data, sizes), default=0)
        if longest < 2 * self._compared or not longest:
            return
        rows = padded_and_alone(data, sizes, PADDED_EXAMPLES)
        if rows is not None:
            with unchanged(model, loss), unchanged_generator():
                compare_padded(model, loss, *rows)
        self._compared = longest
