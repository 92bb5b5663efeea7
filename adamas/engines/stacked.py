"""Takes gradients in hand, one per example: clients' updates, or the output of other code."""

from collections.abc import Mapping

from torch import Tensor

from adamas._nests import batch_length
from adamas.engines.base import Materialized


class Stacked(Materialized):
    """Answers an engine's questions for given vectors, `(n, *p.shape)` for each parameter `p`."""

    def __init__(self, gradients: Mapping[Tensor, Tensor]) -> None:
        n = batch_length(list(gradients.values()))
        for p, g in gradients.items():
            if g.shape[1:] != p.shape:
                raise ValueError(f"Expected gradients of shape (n, *{tuple(p.shape)}), got {tuple(g.shape)}.")
        super().__init__([slice(0, n)] if n else [])
        self._stacked = gradients

    @property
    def parameters(self) -> list[Tensor]:
        """See `Materialized.parameters`."""
        return list(self._stacked)

    def _gradients(self, rows: slice) -> Mapping[Tensor, Tensor]:
        return {p: g[rows] for p, g in self._stacked.items()}
