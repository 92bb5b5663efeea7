r"""Attacks a run, and returns a lower bound on its epsilon: canaries in one training run.

:math:`m` canaries take part in the training or do not, each by a fair coin. The auditor watches the releases,
and guesses the coins. Its guesses give two bounds, which share the probability of being wrong.

**Whatever the mechanism is** (Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run",
NeurIPS 2023). The auditor guesses the coins of the :math:`r` canaries of which it is surest. If all that was
released is :math:`(\varepsilon, \delta)`-differentially private, then with
:math:`q = 1/(1 + e^{-\varepsilon})` at least :math:`v` guesses are right with probability at most (their
Theorem 5.2)

.. math::
    P[\mathrm{Bin}(r, q) \ge v]
    + 2 m \delta \max_{1 \le i \le v} \frac{1}{i} P[v > \mathrm{Bin}(r, q) \ge v - i].

Every epsilon for which that is too small is refuted. Nothing is asked of the mechanism, which may adapt to
its own releases as rules with a geometry do. The price is a reach of about :math:`\log m`.

**For independent Gaussians** (the test of Nasr et al., "Tight Auditing of Differentially Private Machine
Learning", USENIX Security 2023, over the canaries of one run instead of over runs). If the run is what its
ledger says but for the noise multiplier, then canaries that share no coordinate are independent trials.
Confidence limits (Clopper and Pearson) of the rates of false and of true alarms refute every noise multiplier
under whose exact trade-off curve no attack can have both.

The canaries are gradients (Dirac canaries): each has a place in the data set, in the place of an example, and
a coordinate of its own, along which its gradient is far outside the unit ball. It is sampled, clipped, summed
and noised like every example. The auditor knows all but the coins, the canaries' sampling and the noise.
Among terms of a graph a canary is a node: it has the gradients of as many terms as a node may change.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from adamas import _validate
from adamas._progress import task_bar
from adamas._streams import Seed
from adamas.accounting.ledger import privacy_profile
from adamas.audit.canaries import Canaries, noiseless_threshold
from adamas.check.replay import MakeRun, fresh_run
from adamas.graphs.samplers import FixedSizeTerms
from adamas.run.loop import PrivateRun
from adamas.sampling import TruncatedPoisson

METHOD = (
    "one-run audit with gradient canaries: the larger of the bound of Steinke, Nasr and Jagielski (2023) for "
    "any mechanism, and that of Clopper-Pearson limits on the trade-off curve for independent Gaussians"
)

_RESOLUTION = 0.01  # of the bound for any mechanism
_LARGEST = 50.0
_THRESHOLDS = (-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0, 8.0)  # of a score; one more is for runs without noise
# Noise multipliers that are tried, 2^(k/8) times the stated one: from half of it to 8 times.
_FINENESS, _LOWEST, _HIGHEST = 8, -8, 24
_COSTLY = 60.0  # epsilon, above which a trade-off curve takes too long


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Attributes:
        lower_bound: With `confidence`, epsilon is at least this: the larger of the next two.
        any_mechanism: The bound that asks nothing of the mechanism.
        gaussian: The bound if the run's releases are independent Gaussians, sampled as stated.
        confidence: The probability with which the bound holds.
        claimed: The epsilon that the run states.
        delta: The delta of both epsilons.
        conclusive: Whether the claim would have been refuted if every guess had been right.
        canaries: Their number, over all runs.
        guesses: How many coins were guessed for `any_mechanism`.
        correct: How many of the guesses were right.
        steps: Steps of each run.
        runs: How many runs were made.
        method: The audit's name and source.
    """

    lower_bound: float
    any_mechanism: float
    gaussian: float
    confidence: float
    claimed: float
    delta: float
    conclusive: bool
    canaries: int
    guesses: int
    correct: int
    steps: int
    runs: int
    method: str = METHOD

    @property
    def verdict(self) -> str:
        """A refuted claim is a "fail", one that stands a "pass", one that could not fall "out of reach"."""
        if self.lower_bound > self.claimed:
            return "fail"
        return "pass" if self.conclusive else "out of reach"


def audit(
    make_run: MakeRun,
    *,
    canaries: int | None = None,
    confidence: float = 0.95,
    steps: int | None = None,
    runs: int = 1,
    seed: int | None = None,
    progress: bool | None = None,
) -> Audit:
    """Trains with canaries in place of some examples, and bounds epsilon from below.

    Args:
        make_run: Returns a fresh `adamas.PrivateRun` at each call. The audit trains it, so that neither the
            model nor what it learns is of use to anybody.
        canaries: How many; by default as many as half of the examples, the parameters and delta allow, at
            most 1000. More can show a larger epsilon.
        confidence: The probability with which the bound holds.
        steps: Steps to watch, and to compare with the epsilon that was spent on them; all if None.
        runs: Runs to make. Their canaries count together, so that small models can be audited.
        seed: Of the coins, places and coordinates of the canaries; None draws one.
        progress: Show a progress bar; None shows it on a terminal.

    Guarantee:
        If all that the run releases is (claimed, delta)-differentially private, then the lower bound is above
        `claimed` with probability at most 1 - confidence.

    Example:
        >>> import adamas, torch
        >>> from adamas.audit import audit
        >>> from torch.nn import functional as F
        >>> data = torch.utils.data.TensorDataset(torch.randn(500, 20), torch.ones(500).long())
        >>> def make_run():
        ...     model = torch.nn.Linear(20, 10)
        ...     return adamas.make_private(
        ...         model, adamas.rules.Adam(model.parameters()), data,
        ...         lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
        ...         batch_size=100, steps=20, noise_multiplier=0.8, delta=1e-5, seed=0, accountant="rdp")
        >>> result = audit(make_run, seed=0)
        >>> result.canaries, result.verdict, 0 < result.lower_bound < result.claimed
        (210, 'pass', True)
    """
    _validate.probability(confidence=confidence)
    _validate.count(runs=runs, **{k: v for k, v in {"canaries": canaries, "steps": steps}.items() if v})
    secret = Seed(seed)
    scores, coins, claimed = [], [], 0.0
    run = fresh_run(make_run)
    total = run.steps if steps is None else min(steps, run.steps)
    with task_bar(progress, "audited steps", runs * total) as advance:
        for number in range(runs):
            run = fresh_run(make_run) if number else run
            planted = Canaries(run, canaries, secret.generator("canaries", number))
            for step in planted.run:
                planted.watch(step.release)
                advance()
                if step.number == total:
                    break
            scores.append(planted.scores)
            coins.append(planted.included)
            claimed = max(claimed, planted.run.epsilon())
    included = np.concatenate(coins)
    half = (1 + confidence) / 2
    found = bound(np.concatenate(scores), included, run.delta, half)
    perfect = np.where(included, np.inf, -np.inf)
    curves = _Curves(run, total, claimed)
    gaussian = curves.bound(np.concatenate(scores), included, half)
    conclusive = bound(perfect, included, run.delta, half)[0] > claimed
    return Audit(
        lower_bound=max(found[0], gaussian),
        any_mechanism=found[0],
        gaussian=gaussian,
        confidence=confidence,
        claimed=claimed,
        delta=run.delta,
        conclusive=conclusive or curves.refuted(perfect, included, half),
        canaries=len(included),
        guesses=found[1],
        correct=found[2],
        steps=total,
        runs=runs,
    )


def bound(
    scores: np.ndarray, included: np.ndarray, delta: float, confidence: float
) -> tuple[float, int, int]:
    """Returns the lower bound from the canaries' scores, the number of guesses, and how many were right.

    Several ways to guess share the probability of being wrong: the highest scores as included, or these
    and the lowest ones as not included, for several numbers of guesses.

    Args:
        scores: The membership score of each canary.
        included: Whether it did.
        delta: The delta at which epsilon is bounded.
        confidence: The probability with which the bound holds.

    Example:
        >>> scores = np.arange(100.0)
        >>> bound(scores, scores >= 50, delta=1e-6, confidence=0.95)
        (2.68, 80, 80)
    """
    m = len(scores)
    order = np.argsort(-scores, kind="stable")
    sizes = sorted({k for k in (m // 2 - math.isqrt(m), m // 4, m // 8, m // 16, m // 32) if k > 0})
    ways = [(k, both) for k in sizes for both in (False, True)]
    best = (0.0, 0, 0)
    for k, both in reversed(ways):
        correct = int(included[order[:k]].sum())
        if both:
            correct += int((~included[order[-k:]]).sum())
        guesses = 2 * k if both else k
        level = (1 - confidence) / len(ways)
        if p_value(m, guesses, correct, best[0] + _RESOLUTION, delta) <= level:  # else it shows no more
            best = max(best, (_refuted(m, guesses, correct, delta, level), guesses, correct))
    return best


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Bounds the probability of `correct` right guesses under (epsilon, delta)-differential privacy.

    Example:
        >>> round(p_value(100, 100, 90, epsilon=1.0, delta=0.0), 5), p_value(10, 10, 5, 0.0, 0.0) > 0.5
        (3e-05, True)
    """
    q = 1 / (1 + math.exp(-epsilon))
    tail = float(stats.binom.sf(correct - 1, guesses, q))
    below = np.cumsum(stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, q))  # P[v > Bin >= v - i]
    steepest = float((below / np.arange(1, correct + 1)).max(initial=0.0))
    return min(1.0, tail + 2 * canaries * delta * steepest)


def _refuted(m: int, guesses: int, correct: int, delta: float, level: float) -> float:
    """Returns the largest epsilon up to which all are refuted, rounded down to `_RESOLUTION`."""
    ticks = 0
    # The p-value need not rise with epsilon where delta counts, so that no search may jump.
    while (
        ticks * _RESOLUTION < _LARGEST and p_value(m, guesses, correct, ticks * _RESOLUTION, delta) <= level
    ):
        ticks += 1
    return max(ticks - 1, 0) * _RESOLUTION


class _Curves:
    """The trade-off curves of a run with another noise multiplier, and what guesses refute of them.

    Args:
        run: A run that was audited.
        steps: How many steps of it.
        claimed: What it says that they cost.
    """

    def __init__(self, run: PrivateRun, steps: int, claimed: float) -> None:
        self._run, self._steps, self._claimed = run, steps, claimed
        # The auditor of truncated batches does not know the examples' share, so nothing is independent.
        # In batches of a fixed size, canaries take the places of one another.
        dependent = isinstance(run.loader.sampler, TruncatedPoisson | FixedSizeTerms)
        self._usable = run.private and claimed <= _COSTLY and not dependent
        self._known: dict[int, tuple[np.ndarray, np.ndarray, float]] = {}
        self._thresholds = (*_THRESHOLDS, noiseless_threshold(run, steps)) if self._usable else _THRESHOLDS

    def bound(self, scores: np.ndarray, included: np.ndarray, confidence: float) -> float:
        """Returns the epsilon of the least noise that is refuted, 0 if none is."""
        if not self._usable:
            return 0.0
        limits = rates(scores, included, confidence, self._thresholds)
        low, high = (_LOWEST, 0) if self._refuted(0, limits) else (1, _HIGHEST)
        if not self._refuted(high, limits):
            return 0.0
        while low < high:  # more noise is refuted more easily
            middle = (low + high) // 2
            if self._refuted(middle, limits):
                high = middle
            else:
                low = middle + 1
        return math.floor(self._curve(high)[2] / _RESOLUTION) * _RESOLUTION

    def refuted(self, scores: np.ndarray, included: np.ndarray, confidence: float) -> bool:
        """Tells whether the stated noise is refuted."""
        return self._usable and self._refuted(0, rates(scores, included, confidence, self._thresholds))

    def _refuted(self, place: int, limits: list[tuple[float, float]]) -> bool:
        epsilons, deltas, _ = self._curve(place)
        return any(false < least_false_rate(true, epsilons, deltas) for true, false in limits)

    def _curve(self, place: int) -> tuple[np.ndarray, np.ndarray, float]:
        if place not in self._known:
            sampler = self._run.loader.sampler
            z = self._run.noise_multiplier * 2 ** (place / _FINENESS)
            event = sampler.plan(z, self._steps)
            self._known[place] = privacy_profile(
                event, self._run.delta, sampler.relation, interval=self._claimed / 1000 or 0.01
            )
        return self._known[place]


def rates(
    scores: np.ndarray, included: np.ndarray, confidence: float, thresholds: Sequence[float]
) -> list[tuple[float, float]]:
    """Returns for each threshold the least rate of true alarms and the largest rate of false ones."""
    level = (1 - confidence) / (2 * len(thresholds))
    inside, outside = scores[included], scores[~included]
    limits = []
    for threshold in thresholds:
        true, false = int((inside > threshold).sum()), int((outside > threshold).sum())
        least = float(stats.beta.ppf(level, true, len(inside) - true + 1)) if true else 0.0
        most = 1.0
        if false < len(outside):
            most = float(stats.beta.ppf(1 - level, false + 1, len(outside) - false))
        limits.append((least, most))
    return limits


def least_false_rate(true_rate: float, epsilons: np.ndarray, deltas: np.ndarray) -> float:
    """Returns the least rate of false alarms of any attack with `true_rate`, given a privacy profile.

    Example:
        >>> least_false_rate(0.8, np.array([1.0]), np.array([0.0])) > 0.29
        True
    """
    return max(
        0.0,
        float(((true_rate - deltas) * np.exp(-epsilons)).max()),
        float((1 - deltas - np.exp(epsilons) * (1 - true_rate)).max()),
    )
