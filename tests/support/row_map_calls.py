"""Count the calls of `RowMap`, the closed form behind derived weights, and of the general path."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from torch import Tensor

from adamas.engines.bookkeeping import derived
from adamas.engines.bookkeeping.row_map import RowMap


@dataclass
class Calls:
    fits: list[RowMap | None] = field(default_factory=list)
    squares: list[Tensor | None] = field(default_factory=list)
    general: int = 0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Records what `RowMap` returned, and counts Jacobian products of single examples."""
    seen = Calls()
    fit, combined, general = RowMap.fit, RowMap._combined, derived._pulled_back

    def spied_fit(*args: Any) -> RowMap | None:
        seen.fits.append(fit(*args))
        return seen.fits[-1]

    def spied_squares(self: RowMap, *args: Any) -> Tensor | None:
        seen.squares.append(combined(self, *args))
        return seen.squares[-1]

    def spied_general(*args: Any) -> Any:
        seen.general += 1
        return general(*args)

    monkeypatch.setattr(RowMap, "fit", spied_fit)
    monkeypatch.setattr(RowMap, "_combined", spied_squares)
    monkeypatch.setattr(derived, "_pulled_back", spied_general)
    return seen
