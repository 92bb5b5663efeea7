r"""Checks that batches are drawn as the accountant assumes: rate, sizes, independence.

**Sizes.** That of a batch has a known distribution: binomial, and cut at the largest size for truncated
batches. :math:`F(n - 1) + v\,(F(n) - F(n - 1))` with :math:`v` uniform is exactly uniform then, and its
normal quantile exactly standard normal, so that the tests of their mean and of their squares are exact.

**Dependence.** Given its size, a batch is any subset of the data set, as likely as any other, whatever was
drawn before. It then shares with a set of :math:`k` examples a hypergeometric number of its own, whose
moment-generating function is below that of :math:`\mathrm{Bin}(k, n/N)` (Hoeffding 1963), and of several
independent ones below that of a binomial with the mean rate, by concavity. Chernoff's bound

.. math:: 2 \exp(-S\, \mathrm{KL}(o/S \,\|\, e/S))

on :math:`o` shared examples of :math:`S`, where :math:`e` are expected, is a p-value without approximation.
Batches are compared with those a number of steps before, with all of a number of steps before, and each
with itself at neighbouring places.
"""

import math
from collections.abc import Iterable, Iterator

import numpy as np
from scipy import sparse, stats

from adamas._streams import Seed
from adamas.accounting.terms import SampledTermsDpEvent
from adamas.check.base import FAIL, FALSE_ALARM, NOT_APPLICABLE, PASS, Outcome, Replay
from adamas.graphs.samplers import FixedSizeTerms
from adamas.loading import dataset_length
from adamas.sampling import Sampler, Shuffled, TruncatedPoisson

_MOST_COMPARED = 2000  # batches of which each is compared with each
_DETECTED = 5.03 + 3.09  # standard deviations: of a false alarm, and of a power of 99.9%


def rate(replay: Replay) -> Outcome:
    """Compares how many examples were loaded, and how often each, with the accountant's rate."""
    sampler, n, batches = _drawn(replay)
    for step, batch in enumerate(batches):
        if len(np.unique(batch)) != len(batch):
            return FAIL, f"the batch of step {step + 1} has an example twice"
    if isinstance(sampler, Shuffled):
        return _epochs(sampler, n, batches)
    counts = np.bincount(np.concatenate(batches), minlength=n)
    taken, coins, q = int(counts.sum()), n * len(batches), _stated_rate(sampler)
    p_values = [
        float(stats.binom.sf(taken - 1, coins, q)),
        n * float(stats.binom.sf(counts.max() - 1, len(batches), q)),
    ]
    if isinstance(sampler, TruncatedPoisson):  # fewer are to be expected, how many fewer the sizes say
        p_values.append(_two_sided(_normal_scores(sampler, n, batches).sum() / math.sqrt(len(batches))))
    else:
        p_values.append(float(stats.binom.cdf(taken, coins, q)))
    smallest = _DETECTED * math.sqrt((1 - q) / (q * coins))
    return _verdict(
        p_values,
        f"in {len(batches)} batches an example took part with probability {taken / coins:.4g}, stated "
        f"{q:.4g} (an error of {max(smallest, 1e-4):.2%} would be seen), and the busiest one "
        f"{counts.max()} times",
    )


def sizes(replay: Replay) -> Outcome:
    """Compares the variance of the batch sizes with that of independent coins."""
    sampler, n, batches = _drawn(replay)
    if isinstance(sampler, Shuffled | FixedSizeTerms):
        return NOT_APPLICABLE, "batches of one size, which are accounted as such"
    scores, held = _normal_scores(sampler, n, batches), np.array([len(batch) for batch in batches])
    total = float(np.square(scores).sum())
    tails = stats.chi2.cdf(total, len(scores)), stats.chi2.sf(total, len(scores))
    q = _stated_rate(sampler)
    stated = f"{n * q * (1 - q):.4g}" + (" before they are cut" * isinstance(sampler, TruncatedPoisson))
    return _verdict(
        [float(tail) for tail in tails],
        f"the sizes of {len(batches)} batches have variance {held.var():.4g}, and {stated} if each example "
        f"has a coin; between {held.min()} and {held.max()}",
    )


def independence(replay: Replay) -> Outcome:
    """Counts examples that batches share with earlier ones, and neighbours in the same batch."""
    sampler, n, batches = _drawn(replay)
    if isinstance(sampler, Shuffled):
        return NOT_APPLICABLE, "the accountant asks for no independence of shuffled batches"
    batches = [np.unique(batch) for batch in batches]
    rows = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
    places = np.concatenate(batches)
    members = sparse.csr_array(
        (np.ones(len(places), dtype=np.int64), (rows, places)), shape=(len(batches), n)
    )
    found = [*_lags(members[:_MOST_COMPARED]), *_windows(members), *_neighbours(members)]
    p_values = [p for p, _, _, _ in found]
    _, words, shared, expected = min(found)
    return _verdict(
        p_values,
        f"{len(batches)} batches, each beside those up to {min(len(batches), _MOST_COMPARED) // 2} steps "
        f"before: most notable, {shared} examples shared with {words}, where {expected:.0f} are expected",
    )


_Found = tuple[float, str, int, float]
"""A p-value, its subject, and the shared examples: their number, and the expected one."""


def _lags(members: sparse.csr_array) -> Iterator[_Found]:
    """Compares each batch with the one `lag` steps later, in two sets of disjoint pairs."""
    held = members.sum(axis=1)
    steps, n = members.shape
    pairs = sparse.coo_array(sparse.triu(members @ members.T, k=1))
    lags = pairs.col - pairs.row
    near = lags <= steps // 2
    lags, first, shared = lags[near], pairs.row[near], pairs.data[near]
    totals = np.bincount(2 * lags + first // lags % 2, weights=shared, minlength=2 * (steps // 2 + 1))
    for lag in range(1, steps // 2 + 1):
        parity = np.arange(steps - lag) // lag % 2
        for which in (0, 1):
            kept = np.flatnonzero(parity == which)
            yield _found(f"that {lag} before", totals[2 * lag + which], held[kept], held[kept + lag] / n)


def _windows(members: sparse.csr_array) -> Iterator[_Found]:
    """Compares batches with the union of the 2, 4, 8, ... batches before, in consecutive blocks."""
    held = members.sum(axis=1)
    steps, n = members.shape
    width = 2
    while 2 * width <= steps:
        blocks = np.arange(steps) // width
        joined = sparse.csr_array((np.ones(steps, dtype=np.int64), (blocks, np.arange(steps)))) @ members
        joined.data[:] = 1
        sizes = joined.sum(axis=1)
        for which in (0, 1):
            later = np.flatnonzero((blocks > 0) & (blocks % 2 == which))
            shared = members[later].multiply(joined[blocks[later] - 1]).sum()
            yield _found(f"the {width} before", shared, held[later], sizes[blocks[later] - 1] / n)
        width *= 2


def _neighbours(members: sparse.csr_array) -> Iterator[_Found]:
    """Compares examples at even places with their neighbours at odd places, in the same batch."""
    columns = members.tocsc()
    for start in (0, 1):
        half = (members.shape[1] - start) // 2
        if half == 0:
            continue
        left, right = (columns[:, start + side : start + 2 * half : 2] for side in (0, 1))
        shared = left.multiply(right).sum()
        yield _found("neighbours in the data set", shared, left.sum(axis=1), right.sum(axis=1) / half)


def _found(words: str, shared: float, trials: np.ndarray, chances: np.ndarray) -> _Found:
    """Bounds a p-value by Chernoff: each of `trials[k]` examples is shared with probability `chances[k]`."""
    total, expected = float(trials.sum()), float((trials * chances).sum())
    if total == 0 or not 0 < expected < total:
        return float(shared == expected), words, int(shared), expected
    seen, mean = shared / total, expected / total
    divergence = seen * math.log(seen / mean) if seen else 0.0
    divergence += (1 - seen) * math.log((1 - seen) / (1 - mean)) if seen < 1 else 0.0
    return min(1.0, 2 * math.exp(-total * divergence)), words, int(shared), expected


def _epochs(sampler: Shuffled, n: int, batches: list[np.ndarray]) -> Outcome:
    """Checks that each example takes part once in an epoch, as the accountant assumes."""
    taken = np.zeros((sampler.unit(len(batches) - 1) + 1, n), dtype=np.int64)
    for step, batch in enumerate(batches):
        taken[sampler.unit(step), batch] += 1
    if (taken > 1).any():
        return FAIL, f"epoch {1 + int((taken > 1).any(1).argmax())} takes an example twice"
    if len(batches) < 2 * sampler.steps_per_epoch():
        return PASS, f"the first {len(batches)} batches take no example twice in an epoch"
    if (taken < 1).any():
        return FAIL, f"epoch {1 + int((taken < 1).any(1).argmax())} does not take every example"
    return PASS, "each of two epochs takes every example once"


def _drawn(replay: Replay) -> tuple[Sampler, int, list[np.ndarray]]:
    loader = replay.still.loader
    return loader.sampler, dataset_length(loader.dataset), replay.draws


def _stated_rate(sampler: Sampler) -> float:
    """Returns the probability that an example takes part, as the accountant assumes."""
    event = sampler.event({0: [1.0]})
    if isinstance(event, SampledTermsDpEvent):
        return event.batch_size / event.dataset_size
    return float(event.sampling_probability)


def _normal_scores(sampler: Sampler, n: int, batches: list[np.ndarray]) -> np.ndarray:
    """Maps the sizes to values that are standard normal and independent, if all is as stated."""
    held = np.array([len(batch) for batch in batches])
    low, high = (stats.binom.cdf(size, n, _stated_rate(sampler)) for size in (held - 1, held))
    if isinstance(sampler, TruncatedPoisson):
        low = np.where(held > sampler.max_batch_size, 1.0, low)
        high = np.where(held >= sampler.max_batch_size, 1.0, high)
    spread = Seed(0).generator("adamas check: sizes").random(len(held))
    scores: np.ndarray = stats.norm.ppf(low + spread * (high - low))
    return scores


def _two_sided(score: float) -> float:
    return float(2 * stats.norm.sf(abs(score)))


def _verdict(p_values: Iterable[float], seen: str) -> Outcome:
    """Decides by Bonferroni: the smallest p-value times their number."""
    held = list(p_values)
    least = min(1.0, len(held) * min(held))
    words = f"{seen}; p = {least:.2g}, where {FALSE_ALARM:g} is a false alarm's"
    return (PASS if least >= FALSE_ALARM else FAIL), words
