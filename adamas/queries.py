"""Noisy counts: small releases besides gradients, such as how many answers are right.

True and released counts are whole numbers: Gaussian noise is rounded before it is added. Rounding the sum
would give the same numbers, so this is post-processing of the Gaussian mechanism. No bits of a floating-point
sum are released.
"""

from collections.abc import Sequence

import dp_accounting
import numpy as np
import torch
from dp_accounting import NeighboringRelation

from adamas import _validate
from adamas._streams import Seed
from adamas.accounting.ledger import Ledger
from adamas.noise import GaussianNoise

_LARGEST_COUNT = 2**52
_LARGEST_NOISE = 2.0**40  # float64 noise has the digits of whole numbers up to far more than its deviation
_RELATIONS = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL)


def noisy_counts(
    counts: Sequence[int] | np.ndarray,
    *,
    noise_multiplier: float,
    sensitivity: float = 1.0,
    ledger: Ledger | None = None,
    seed: int | None = None,
) -> np.ndarray:
    """Releases counts of records with Gaussian noise.

    Args:
        counts: The true counts, which are private.
        noise_multiplier: The standard deviation of the noise, relative to the sensitivity.
        sensitivity: The most that adding or removing one record moves the counts, in the Euclidean norm: 1
            for one count, or for a histogram in which a record is in one bin at most; sqrt(k) for k such
            histograms of the same records. The caller guarantees it.
        ledger: Records the release here, before the noise is drawn. Its relation is adding or removing a
            record, or replacing one by a record without influence.
        seed: Makes the noise reproducible; anyone who knows it can remove the noise. Never use one number for
            two calls on the same data. None draws a secret one.

    Returns:
        Whole numbers. They may be negative.

    Guarantee:
        One Gaussian event of this multiplier, under adding or removing one record.

    Example:
        >>> from adamas import Ledger
        >>> ledger = Ledger()
        >>> noisy_counts([812, 188], noise_multiplier=5.0, ledger=ledger, seed=0).tolist()
        [820, 193]
        >>> round(ledger.epsilon(delta=1e-5), 3)
        0.726
    """
    _validate.positive(noise_multiplier=noise_multiplier, sensitivity=sensitivity)
    _validate.noise_multiplier(noise_multiplier=noise_multiplier)
    true = np.asarray(counts)
    if not np.issubdtype(true.dtype, np.integer) or true.ndim != 1:
        raise TypeError(
            f"Expected counts to be a list of whole numbers, got {true.dtype} of {true.ndim} dimensions."
        )
    if true.size and int(np.abs(true).max()) > _LARGEST_COUNT:
        raise ValueError(f"Expected counts from -{_LARGEST_COUNT} to {_LARGEST_COUNT}.")
    if noise_multiplier * sensitivity > _LARGEST_NOISE:
        raise ValueError(
            f"Expected noise_multiplier * sensitivity <= {_LARGEST_NOISE:g}, got "
            f"{noise_multiplier * sensitivity:g}: the digits of larger noise do not reach whole numbers."
        )
    if ledger is not None and ledger.relation not in _RELATIONS:
        raise ValueError(
            f"Expected a ledger under ADD_OR_REMOVE_ONE or REPLACE_SPECIAL, got {ledger.relation.name}: "
            "replacing a record moves two counts."
        )
    noise = GaussianNoise(_own_seed(seed))
    if ledger is not None:
        ledger.record(dp_accounting.GaussianDpEvent(noise_multiplier))
    drawn = noise.normal_(torch.empty(true.size, dtype=torch.float64)).numpy()
    return true.astype(np.int64) + np.rint(noise_multiplier * sensitivity * drawn).astype(np.int64)


def _own_seed(seed: int | None) -> Seed:
    """Returns a seed whose noise differs from that of a training run with the same number."""
    if seed is None:
        return Seed()
    return Seed(int.from_bytes(Seed(seed).words("counts", count=8).tobytes(), "little"))
