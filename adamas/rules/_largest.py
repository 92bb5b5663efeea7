"""Finds the k largest magnitudes in each row of a matrix, faster than `topk` thanks to thresholds."""

import numpy as np
import torch
from torch import Tensor

MARGIN = 0.96
"""Factor from the smallest selected magnitude to the threshold of the next step.

It bounds the next step's k-th magnitude from below in nearly every row: one of 328 among 32768 normal values
moves by 1% of itself from one draw to the next.
"""

# A row with more candidates than this part of its entries is searched without a threshold.
_MOST_CANDIDATES = 0.25


def find_largest(sums: Tensor, entries: int, k: int, last: int, threshold: Tensor, work: Tensor) -> Tensor:
    """Returns the places of the k largest magnitudes in each row, and updates the thresholds in place.

    The rows hold `entries` values in all, so the last row may be shorter. It has `last` places, and repeats
    one of them up to k. NaN counts as the largest. On a CPU, ties go to the first entry, and only entries
    above the row's threshold are compared, which is several times as fast as `topk`. If too few or too many
    pass the threshold, the whole row is searched.
    """
    magnitudes = torch.abs(sums, out=work)
    magnitudes.view(-1)[entries:] = -1.0
    chosen = torch.empty(len(sums), k, dtype=torch.int64, device=sums.device)
    if sums.device.type == "cpu":
        _largest_above(magnitudes.numpy(), k, last, threshold.numpy(), chosen.numpy())
    else:
        chosen[:-1] = magnitudes[:-1].topk(k, sorted=False).indices
        chosen[-1, :last] = magnitudes[-1].topk(last, sorted=False).indices
    if last < k:
        chosen[-1, last:] = chosen[-1, 0]
    return chosen


def _largest_above(
    magnitudes: np.ndarray, k: int, last: int, threshold: np.ndarray, chosen: np.ndarray
) -> None:
    """Searches with NumPy, whose comparisons take a fifth of torch's time."""
    rows, length = magnitudes.shape
    places = (~(magnitudes < threshold[:, None])).reshape(-1).nonzero()[0]
    edges = places.searchsorted(np.arange(rows + 1) * length).tolist()
    for row, x in enumerate(magnitudes):
        number = last if row == rows - 1 else k
        if number <= edges[row + 1] - edges[row] <= _MOST_CANDIDATES * length:
            above = places[edges[row] : edges[row + 1]] - row * length
            best, least = _first_largest(x[above], number)
            chosen[row, :number] = above[best]
        else:
            chosen[row, :number], least = _first_largest(x, number)
        threshold[row] = threshold.dtype.type(MARGIN) * least


def _first_largest(magnitudes: np.ndarray, k: int) -> tuple[np.ndarray, np.floating]:
    """Returns the places of the k largest magnitudes, in order, and the smallest of them; first of ties."""
    nan = np.array(np.nan, magnitudes.dtype)
    # Bits of magnitudes, read as integers, sort like the magnitudes; all NaN map to one integer.
    integers = np.int32 if magnitudes.dtype == np.float32 else np.int64
    keys = np.minimum(magnitudes.view(integers), nan.view(integers))
    least = np.partition(keys, len(keys) - k)[len(keys) - k]
    best = (keys >= least).nonzero()[0]
    if len(best) > k:
        ties = best[keys[best] == least]
        best = np.setdiff1d(best, ties[k - len(best) :], assume_unique=True)
    return best, least.view(magnitudes.dtype)
