"""Samplers of terms: they draw as `adamas.sampling` does, and know how many terms one node changes."""

from collections.abc import Mapping, Sequence
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation

from adamas import _validate
from adamas._streams import Seed
from adamas.accounting.terms import FIXED_SIZE, POISSON, SampledTermsDpEvent
from adamas.sampling import Draw, Poisson, Sampler, joint_noise_multiplier


class TermSampler(Sampler):
    """Draws terms of which one record changes several.

    Args:
        dataset_size: Number of terms.
        batch_size: Number of terms in a batch, or its expectation.
        seed: See `Sampler`.
        terms: The largest number of terms that one record changes.
        relation: What changes about a record.
        protects: The same in words.
        made_with: What the terms were made with: a run that continues must have the same.
    """

    _SAMPLING: str

    def __init__(
        self,
        dataset_size: int,
        batch_size: int,
        seed: Seed | int | None = None,
        *,
        terms: int,
        relation: NeighboringRelation,
        protects: str,
        made_with: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(dataset_size, batch_size, seed)
        _validate.count(terms=terms)
        self._terms = min(int(terms), self.dataset_size)
        self._relation, self._protects = relation, protects
        self._made_with = dict(made_with or {})

    @property
    def relation(self) -> NeighboringRelation:
        """What changes about a record."""
        return self._relation

    @property
    def protects(self) -> str:  # type: ignore[override]
        """The same in words."""
        return self._protects

    @property
    def sampling(self) -> str:
        """How terms are drawn: `POISSON` or `FIXED_SIZE`."""
        return self._SAMPLING

    @property
    def made_with(self) -> dict[str, Any]:
        """What the terms were made with."""
        return dict(self._made_with)

    @property
    def terms(self) -> int:
        """The largest number of terms that one record changes."""
        return self._terms

    def event(self, releases: Mapping[int, Sequence[float]]) -> dp_accounting.DpEvent:
        """See `Sampler.event`."""
        (multipliers,) = releases.values()
        z = joint_noise_multiplier(multipliers)
        if z == 0:
            return dp_accounting.NonPrivateDpEvent()
        return SampledTermsDpEvent(self.dataset_size, self.batch_size, self.terms, z, self.sampling)


class PoissonTerms(TermSampler):
    """Each term joins each batch independently, with probability batch_size/N."""

    _SAMPLING = POISSON
    indices = Poisson.indices


class FixedSizeTerms(TermSampler):
    """Each batch has `batch_size` terms, drawn without replacement, as Daigavane et al. (2021) do."""

    _SAMPLING = FIXED_SIZE

    def indices(self, step: int) -> Draw:
        """See `Sampler.indices`."""
        coins = self.seed.sampling_generator("sampling", step).random(self.dataset_size)
        return Draw(np.sort(np.argpartition(coins, self.batch_size - 1)[: self.batch_size]))


TERM_SAMPLERS: dict[str, type[TermSampler]] = {POISSON: PoissonTerms, FIXED_SIZE: FixedSizeTerms}
"""Samplers of terms by name."""
