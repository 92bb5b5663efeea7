"""Chooses the examples of each step, and states what that choice is worth to privacy.

A sampler has public settings and a secret seed. `indices(step)` is a pure function of them, so a position is
a step number, and a resumed run draws what the uninterrupted one would have drawn. The sampler that draws a
batch also states its event: sampling and accounting cannot disagree.

    poisson             each example joins each batch independently, with probability batch_size/N
    truncated-poisson   the same, cut at random to a largest size and padded to it: one shape
    shuffled            fixed-size batches of a permutation per epoch: no amplification
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation

from adamas import _validate
from adamas._streams import Seed

_PURPOSE = "sampling"


@dataclass(frozen=True)
class Draw:
    """The examples of one logical batch.

    Attributes:
        indices: Places in the data set; padding repeats a place that exists.
        padding: How many of the last indices are padding, which must have no influence.
    """

    indices: np.ndarray
    padding: int = 0

    def dealt(self, rank: int, world_size: int) -> "Draw":
        """Returns one rank's share of the draw: every `world_size`-th place, from `rank` on.

        Example:
            >>> [Draw(np.array([3, 5, 8, 0]), padding=1).dealt(rank, 2) for rank in range(2)]
            [Draw(indices=array([3, 8]), padding=0), Draw(indices=array([5, 0]), padding=1)]
        """
        places = np.arange(rank, len(self.indices), world_size)
        return Draw(self.indices[places], int((places >= len(self.indices) - self.padding).sum()))


class Sampler(ABC):
    """Draws the logical batch of each step, and states the event of a release made on it."""

    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    protects: str | None = None
    """What the relation changes, in words, if a record is not one example; None otherwise."""

    def __init__(self, dataset_size: int, batch_size: int, seed: Seed | int | None = None) -> None:
        _validate.count(dataset_size=dataset_size, batch_size=batch_size)
        if batch_size > dataset_size:
            raise ValueError(
                f"Expected batch_size={batch_size} <= {dataset_size}, the number of examples. Lower "
                "batch_size."
            )
        self._dataset_size, self._batch_size = int(dataset_size), int(batch_size)
        self._seed = seed if isinstance(seed, Seed) else Seed(seed)

    @property
    def dataset_size(self) -> int:
        """Number of examples. Like all settings it never changes: events of earlier batches depend on it."""
        return self._dataset_size

    @property
    def batch_size(self) -> int:
        """Expected number of examples in a batch."""
        return self._batch_size

    @property
    def seed(self) -> Seed:
        """Where the draws come from."""
        return self._seed

    @property
    def rate(self) -> float:
        """The share of the data set that a batch holds, on average."""
        return self.batch_size / self.dataset_size

    def steps_per_epoch(self) -> int:
        """Returns the number of batches in one pass over the data, on average."""
        return -(-self.dataset_size // self.batch_size)

    @abstractmethod
    def indices(self, step: int) -> Draw:
        """Draws the examples of step 0, 1, ..."""

    def unit(self, step: int) -> int:
        """Returns the accounting unit of a step. All releases of one unit make one event."""
        return step

    @abstractmethod
    def event(self, releases: Mapping[int, Sequence[float]]) -> dp_accounting.DpEvent:
        """Returns the event of a whole unit, given the noise multipliers released on each of its steps."""

    def plan(self, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent:
        """Returns the event of a run with one release on each step."""
        units = self.unit(steps - 1) + 1
        return dp_accounting.SelfComposedDpEvent(self.event({0: [noise_multiplier]}), units)


class Poisson(Sampler):
    """Independent coin flips: the sampling that the standard accountants assume.

    Example:
        >>> sampler = Poisson(dataset_size=1000, batch_size=100, seed=0)
        >>> [len(sampler.indices(step).indices) for step in range(3)]
        [95, 101, 93]
        >>> sampler.event({0: [1.1]}).sampling_probability
        0.1
    """

    def indices(self, step: int) -> Draw:
        """See `Sampler.indices`; the batch may be empty."""
        coins = self.seed.sampling_generator(_PURPOSE, step).random(self.dataset_size)
        return Draw(np.flatnonzero(coins < self.rate))

    def event(self, releases: Mapping[int, Sequence[float]]) -> dp_accounting.DpEvent:
        """Two releases on one batch are one sampled event."""
        (multipliers,) = releases.values()
        gaussians = [dp_accounting.GaussianDpEvent(z) for z in multipliers]
        inner = gaussians[0] if len(gaussians) == 1 else dp_accounting.ComposedDpEvent(gaussians)
        return dp_accounting.PoissonSampledDpEvent(self.rate, inner)


class TruncatedPoisson(Sampler):
    """Poisson sampling with a largest batch size, and every batch padded to it.

    Batches have one shape, as compiled code and fixed memory need. A batch that is too large is cut to
    a random subset; `dp_accounting.TruncatedSubsampledGaussianDpEvent` accounts for that.

    Args:
        dataset_size: Number of examples.
        batch_size: Expected number of examples before truncation, and the divisor of the sum.
        max_batch_size: Number of rows of every batch.
        seed: See `Poisson`.
    """

    def __init__(
        self,
        dataset_size: int,
        batch_size: int,
        max_batch_size: int,
        seed: Seed | int | None = None,
    ) -> None:
        super().__init__(dataset_size, batch_size, seed)
        _validate.count(max_batch_size=max_batch_size)
        if max_batch_size < batch_size:
            raise ValueError(
                f"Expected max_batch_size={max_batch_size} >= batch_size={batch_size}; with less, most "
                "batches would be cut."
            )
        self._max_batch_size = max_batch_size

    @property
    def max_batch_size(self) -> int:
        """Number of rows of every batch."""
        return self._max_batch_size

    def indices(self, step: int) -> Draw:
        """See `Sampler.indices`; always `max_batch_size` of them."""
        generator = self.seed.sampling_generator(_PURPOSE, step)
        chosen = np.flatnonzero(generator.random(self.dataset_size) < self.rate)
        if len(chosen) > self.max_batch_size:
            chosen = np.sort(generator.choice(chosen, self.max_batch_size, replace=False))
        padding = self.max_batch_size - len(chosen)
        return Draw(np.concatenate([chosen, np.zeros(padding, dtype=chosen.dtype)]), padding)

    def event(self, releases: Mapping[int, Sequence[float]]) -> dp_accounting.DpEvent:
        """See `Sampler.event`."""
        (multipliers,) = releases.values()
        return dp_accounting.dp_event.TruncatedSubsampledGaussianDpEvent(
            dataset_size=self.dataset_size,
            sampling_probability=self.rate,
            truncated_batch_size=self.max_batch_size,
            noise_multiplier=joint_noise_multiplier(multipliers),
        )


class Shuffled(Sampler):
    """Fixed-size batches of a fresh permutation per epoch, accounted as what they are.

    No amplification is claimed: an example takes part in one batch of each epoch, so an epoch costs one
    un-sampled Gaussian event (parallel composition over its batches). The relation is replacement by a
    record without influence, because adding a record would move others to other batches. The last
    batch of an epoch is smaller where `batch_size` does not divide the number of examples; its sum is
    divided by `batch_size` like the others.

    The guarantee does not need the permutation to be secret.
    """

    relation = NeighboringRelation.REPLACE_SPECIAL

    def indices(self, step: int) -> Draw:
        """See `Sampler.indices`."""
        epoch, place = divmod(step, self.steps_per_epoch())
        order = self.seed.sampling_generator(_PURPOSE, epoch).permutation(self.dataset_size)
        return Draw(order[place * self.batch_size : (place + 1) * self.batch_size])

    def unit(self, step: int) -> int:
        """Returns the epoch of a step."""
        return step // self.steps_per_epoch()

    def event(self, releases: Mapping[int, Sequence[float]]) -> dp_accounting.DpEvent:
        """Returns the event of the costliest batch of the epoch: a record is in only one of them."""
        return dp_accounting.GaussianDpEvent(
            min(joint_noise_multiplier(multipliers) for multipliers in releases.values())
        )


def joint_noise_multiplier(multipliers: Sequence[float]) -> float:
    r"""Returns the multiplier of the one Gaussian that several on the same batch amount to.

    .. math:: z = \left(\sum_k z_k^{-2}\right)^{-1/2}

    Example:
        >>> round(joint_noise_multiplier([2.0, 2.0]), 6)
        1.414214
    """
    if len(multipliers) == 1:
        return multipliers[0]
    if 0 in multipliers:
        return 0.0
    return float(sum(z**-2 for z in multipliers) ** -0.5)


SAMPLERS: dict[str, type[Sampler]] = {
    "poisson": Poisson,
    "truncated-poisson": TruncatedPoisson,
    "shuffled": Shuffled,
}
"""Samplers by name."""
