"""Private statistics of a table: bounds of numbers, and counts of classes.

All are histograms of the rows over public bins. A row is in at most one bin of each, so it moves the counts
of k histograms by at most sqrt(k) in the Euclidean norm. They are released at once, as one Gaussian event.
"""

from collections.abc import Sequence

import dp_accounting
import numpy as np

from adamas._streams import Seed
from adamas.accounting.ledger import Ledger
from adamas.queries import noisy_counts
from adamas.tabular.schema import Bounds

_POWERS = 2.0 ** np.arange(-20, 41)
EDGES = np.concatenate([-_POWERS[::-1], [0.0], _POWERS])
"""The edges of the bins of numbers: 0 and powers of 2 from about 1e-6 to 1e12, of both signs."""

_DEVIATIONS = 4.0  # by which a bin's count must exceed the noise to be believed
_TAIL = 0.005  # of the rows that may lie beyond each bound


def histogram(values: np.ndarray) -> np.ndarray:
    """Counts values in the bins between `EDGES`; larger ones count in the outermost bins, NaN in none."""
    known = values[~np.isnan(values)]
    bins = np.searchsorted(EDGES, known, side="right") - 1
    return np.bincount(np.clip(bins, 0, len(EDGES) - 2), minlength=len(EDGES) - 1)


def class_histogram(codes: np.ndarray, classes: int) -> np.ndarray:
    """Counts the rows of each class; a row of another class, with code -1, counts in none."""
    return np.bincount(codes[codes >= 0], minlength=classes)


def bounds_of(counts: np.ndarray, deviation: float) -> Bounds:
    """Returns bounds of most values, from noisy counts of `histogram`.

    Bins whose count could be noise alone are left out; if all could, the fullest bin is kept.

    Args:
        counts: Noisy counts.
        deviation: The standard deviation of their noise.
    """
    kept = np.where(counts > _DEVIATIONS * deviation, counts, 0)
    if not kept.any():
        kept[counts.argmax()] = 1
    below = kept.cumsum() / kept.sum()
    above = kept[::-1].cumsum()[::-1] / kept.sum()
    first, last = int((below > _TAIL).argmax()), int(np.flatnonzero(above > _TAIL)[-1])
    return float(EDGES[first]), float(EDGES[last + 1])


def released(
    histograms: Sequence[np.ndarray], event: dp_accounting.GaussianDpEvent, ledger: Ledger, seed: int | None
) -> tuple[list[np.ndarray], float]:
    """Releases histograms of the same rows with noise.

    Args:
        histograms: Counts; each row is in at most one bin of each.
        event: The Gaussian event that the budget pays for.
        ledger: Records the event.
        seed: Of the run; None for a secret one.

    Returns:
        The noisy counts, and the standard deviation of their noise.
    """
    sensitivity = float(np.sqrt(len(histograms)))
    if seed is not None:  # other noise than that of the training
        seed = int.from_bytes(Seed(seed).words("private statistics", count=8).tobytes(), "big")
    noisy = noisy_counts(
        np.concatenate(histograms),
        noise_multiplier=event.noise_multiplier,
        sensitivity=sensitivity,
        ledger=ledger,
        seed=seed,
    )
    ends = np.cumsum([len(counts) for counts in histograms])[:-1]
    return np.split(noisy, ends), sensitivity * event.noise_multiplier
