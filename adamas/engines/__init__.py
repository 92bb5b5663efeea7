"""Engines: answer the two questions that a private step asks about a model, a loss and a batch.

An engine is made of `(model, loss, batch)` and answers `norms(geometry)`, the whitened gradient norm
of each example, and `weighted_sum(weights)`, the weighted sum of the examples' gradients. Nothing else
of the per-example gradients is ever needed, so an engine need not hold them.

    bookkeeping records by function, norms by formula: fast, for most models
    vmap        `torch.func.vmap`, for every model that it accepts
    loop        one example at a time: slow, simple, the oracle of the tests
    stacked     gradients that are already in hand, such as clients' updates
"""

from adamas.engines.base import Engine, EngineFactory, Loss, trainable_parameters
from adamas.engines.bookkeeping.engine import Bookkeeping
from adamas.engines.loop import Loop
from adamas.engines.stacked import Stacked
from adamas.engines.vmap import Vmap

FAST = "bookkeeping"
"""The engine that costs no more than training without privacy."""

ENGINES: dict[str, EngineFactory] = {"bookkeeping": Bookkeeping, "vmap": Vmap, "loop": Loop}
"""Engines by name, the preferred one first: `engine="auto"` takes the first that accepts the model."""

READS_VALUES = frozenset({"loop"})
"""Engines in which a forward may make Python values of the data, by `item()` and the like."""

__all__ = [
    "ENGINES",
    "FAST",
    "READS_VALUES",
    "Bookkeeping",
    "Engine",
    "EngineFactory",
    "Loop",
    "Loss",
    "Stacked",
    "Vmap",
    "trainable_parameters",
]
