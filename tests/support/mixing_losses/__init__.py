"""Losses that mix their examples, each in a different way. None may be proven to keep them apart.

`ATTACKS` maps a name to a loss of a model, inputs and labels. Most losses multiply a sum that does not mix by
a factor that does.
"""

from tests.support.mixing_losses import counts, indices, positions, regroupings, sizes, values, writes
from tests.support.mixing_losses.registry import ATTACKS, attack

__all__ = ["ATTACKS", "attack", "counts", "indices", "positions", "regroupings", "sizes", "values", "writes"]
