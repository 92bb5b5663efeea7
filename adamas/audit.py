r"""Attacks a run, and returns a lower bound on its epsilon: canaries in one training run.

The audit is that of Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run" (NeurIPS 2023).
:math:`m` canaries take part in the training or do not, each by a fair coin. The auditor watches the releases,
and guesses the coins of :math:`r` canaries of which it is surest. If all that was released is
:math:`(\varepsilon, \delta)`-differentially private, then with :math:`q = 1/(1 + e^{-\varepsilon})` at least
:math:`v` guesses are right with probability at most (their Theorem 5.2)

.. math::
    P[\mathrm{Bin}(r, q) \ge v]
    + 2 m \delta \max_{1 \le i \le v} \frac{1}{i} P[v > \mathrm{Bin}(r, q) \ge v - i].

Every epsilon for which that is below 5% is refuted. The theorem asks nothing of the mechanism, which may
adapt to its own releases as rules with a geometry do.

The canaries are gradients (Dirac canaries): each has a place in the data set, in the place of an example, and
a coordinate of its own, along which its gradient is far outside the unit ball. It is sampled, clipped, summed
and noised like every example. The auditor knows all but the coins, the canaries' sampling and the noise.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from adamas import _validate
from adamas._numerics import map_tensors
from adamas._progress import task_bar
from adamas._replay import MakeRun, fresh_run, run_geometry
from adamas._streams import Seed
from adamas.engines import ENGINES, Engine, EngineFactory, Loss, trainable_parameters
from adamas.engines.base import empty_sums
from adamas.geometry import Geometry
from adamas.loading import Loader, dataset_length
from adamas.privatize import PrivateGradient
from adamas.run import PrivateRun
from adamas.sampling import Shuffled, TruncatedPoisson

METHOD = "one-run audit with gradient canaries (Steinke, Nasr and Jagielski 2023)"

_NAME = "canaries"  # of the engine while a run is audited
_LENGTH = 100.0  # of a canary's whitened gradient, before it is clipped to 1
_MOST_CANARIES = 1000
_DELTA_SHARE = 0.05  # m delta, above which the theorem's second term leaves nothing to see
_RESOLUTION = 0.01  # of the bound
_LARGEST = 50.0


@dataclass(frozen=True)
class Audit:
    """What an audit showed.

    Attributes:
        lower_bound: With `confidence`, epsilon is at least this, at the run's delta.
        confidence: The probability with which the bound holds.
        claimed: What the run says that it spent.
        delta: The delta of both.
        reach: The bound that the audit would give if every guess were right: it can refute no claim above.
        canaries: How many there were, over all runs.
        guesses: How many coins were guessed for the bound.
        correct: How many of the guesses were right.
        steps: Steps of each run.
        runs: How many runs were made.
        method: The audit's name and source.
    """

    lower_bound: float
    confidence: float
    claimed: float
    delta: float
    reach: float
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
        return "pass" if self.reach > self.claimed else "out of reach"


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
    """Trains with canaries in the place of some examples, and bounds epsilon from below.

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
            planted = _Canaries(run, canaries, secret.generator("canaries", number))
            with planted.in_place():
                for step in run:
                    planted.watch(step.release)
                    advance()
                    if step.number == total:
                        break
            scores.append(planted.scores)
            coins.append(planted.included)
            claimed = max(claimed, run.epsilon())
    included = np.concatenate(coins)
    found = bound(np.concatenate(scores), included, run.delta, confidence)
    return Audit(
        lower_bound=found[0],
        confidence=confidence,
        claimed=claimed,
        delta=run.delta,
        reach=bound(included.astype(float), included, run.delta, confidence)[0],
        canaries=len(included),
        guesses=found[1],
        correct=found[2],
        steps=total,
        runs=runs,
    )


def bound(
    scores: np.ndarray, included: np.ndarray, delta: float, confidence: float
) -> tuple[float, int, int]:
    """The lower bound from the canaries' scores, with the number of guesses and how many were right.

    Several ways to guess share the probability of being wrong: the highest scores as included, or these
    and the lowest ones as not included, for several numbers of guesses.

    Args:
        scores: How much each canary looks as if it took part.
        included: Whether it did.
        delta: The delta at which epsilon is bounded.
        confidence: The probability with which the bound holds.

    Example:
        >>> scores = np.arange(100.0)
        >>> bound(scores, scores >= 50, delta=1e-6, confidence=0.95)
        (2.87, 80, 80)
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
    """The most that so many right guesses can be likely under (epsilon, delta)-differential privacy.

    Example:
        >>> round(p_value(100, 100, 90, epsilon=1.0, delta=0.0), 5), p_value(10, 10, 5, 0.0, 0.0) > 0.5
        (6e-05, True)
    """
    q = 1 / (1 + math.exp(-epsilon))
    tail = float(stats.binom.sf(correct - 1, guesses, q))
    below = np.cumsum(stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, q))  # P[v > Bin >= v - i]
    steepest = float((below / np.arange(1, correct + 1)).max(initial=0.0))
    return min(1.0, tail + 2 * canaries * delta * steepest)


def _refuted(m: int, guesses: int, correct: int, delta: float, level: float) -> float:
    """The largest epsilon up to which all are refuted, rounded down to `_RESOLUTION`."""
    ticks = 0
    # The p-value need not rise with epsilon where delta counts, so that no search may jump.
    while (
        ticks * _RESOLUTION < _LARGEST and p_value(m, guesses, correct, ticks * _RESOLUTION, delta) <= level
    ):
        ticks += 1
    return max(ticks - 1, 0) * _RESOLUTION


class _Canaries:
    """Canaries in a run: where they are, what they do to a batch, and how much they look as if they were in.

    Args:
        run: A fresh run, which is changed.
        count: How many canaries; None for as many as make sense.
        generator: Draws places, coordinates and coins.
    """

    def __init__(self, run: PrivateRun, count: int | None, generator: np.random.Generator) -> None:
        n = dataset_length(run.loader.dataset)
        params = list(trainable_parameters(run.model).values())
        sizes = np.cumsum([0, *(p.numel() for p in params)])
        most = min(n, int(sizes[-1]))
        if count is None:
            count = max(1, min(_MOST_CANARIES, n // 2, int(sizes[-1]), int(_DELTA_SHARE / run.delta)))
        if count > most:
            raise ValueError(
                f"Expected canaries={count} <= {most}: each takes the place of one of {n} examples, and one "
                f"of {sizes[-1]} parameters. Give runs= for more."
            )
        self.run, self._engine = run, run.engine
        self.included = generator.random(count) < 0.5
        self.scores = np.zeros(count)
        # -1 for an example, else the number of the canary in its place.
        self.who = np.full(n, -1)
        self.who[generator.choice(n, count, replace=False)] = np.arange(count)
        flat = generator.choice(int(sizes[-1]), count, replace=False)
        owner = np.searchsorted(sizes, flat, side="right") - 1
        self._coordinates: dict[Tensor, tuple[Tensor, Tensor]] = {
            p: (torch.from_numpy(np.flatnonzero(owner == i)), torch.from_numpy(flat[owner == i] - sizes[i]))
            for i, p in enumerate(params)
        }
        self._known = np.zeros(count)
        self._geometry = _at(run_geometry(run), self._coordinates)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The run trains with the canaries."""
        old = self.run.loader
        self.run.loader = Loader(
            _Numbered(old.dataset, self.who),
            old.sampler,
            collate_fn=_NumberedCollate(old),
            micro_batch_size=old.micro_batch_size,
            num_workers=old.num_workers,
            device=old.device,
        )
        ENGINES[_NAME], self.run.engine = self._make_engine, _NAME
        try:
            yield
        finally:
            del ENGINES[_NAME]
            self.run.loader, self.run.engine = old, self._engine

    def watch(self, release: PrivateGradient) -> None:
        """Adds what a release tells of each canary: a logarithm of likelihoods, in or out."""
        sampler, z = self.run.loader.sampler, self.run.noise_multiplier
        seen = np.zeros(len(self.scores))
        for p, (numbers, places) in self._coordinates.items():
            c, s = self._geometry[p]
            value = release.mean[p].reshape(-1)[places.to(p.device)].double().cpu().numpy()
            seen[numbers.numpy()] = (value - c) / s * sampler.batch_size
        seen -= self._known
        if z > 0:
            q = 1.0 if isinstance(sampler, Shuffled) else sampler.rate
            with np.errstate(all="ignore"):
                seen = np.logaddexp(math.log1p(-q) if q < 1 else -np.inf, math.log(q) + (seen - 0.5) / z**2)
        self.scores += np.nan_to_num(seen)  # what is not a number tells nothing
        self._known = np.zeros(len(self.scores))
        self._geometry = _at(run_geometry(self.run), self._coordinates)

    def _make_engine(self, model: nn.Module, loss: Loss, data: Any) -> Engine:
        numbers, batch = data
        return _Planted(self, numbers.cpu().numpy(), model, loss, batch)

    def inner(self, model: nn.Module, loss: Loss, batch: Any) -> Engine:
        """The run's own engine, for the examples."""
        factory: EngineFactory = ENGINES[self._engine]
        return factory(model, loss, batch)

    def add(self, p: Tensor, out: Tensor, geometry: Geometry, weights: np.ndarray) -> None:
        """Adds the gradients `c + s L e` of the canaries to a sum, given the weight of each."""
        c, s = geometry.center_of(p), geometry.scale[p]
        if c is not None:
            out.add_(c, alpha=float(weights.sum()))
        numbers, places = self._coordinates[p][0], self.places(p)
        added = torch.from_numpy(weights)[numbers].to(out) * _LENGTH
        scale = s.expand(p.shape).reshape(-1)[places] if isinstance(s, Tensor) else s
        out.view(-1).index_add_(0, places, added * scale)

    def note(self, p: Tensor, added: Tensor, weight: float) -> None:
        """Notes what the examples put on the canaries' coordinates, which the auditor knows."""
        if isinstance(self.run.loader.sampler, TruncatedPoisson):
            return  # who was cut away tells of the canaries
        numbers, _ = self._coordinates[p]
        c, s = self._geometry[p]
        batch_size = self.run.loader.sampler.batch_size
        self._known[numbers.numpy()] += (added.double().cpu().numpy() - weight * c) / s * batch_size

    def places(self, p: Tensor) -> Tensor:
        """The canaries' coordinates in a parameter."""
        return self._coordinates[p][1].to(p.device)


class _Planted:
    """An engine for a batch with canaries: the run's own one for the examples, and the canaries beside it."""

    def __init__(
        self, canaries: _Canaries, numbers: np.ndarray, model: nn.Module, loss: Loss, batch: Any
    ) -> None:
        self._canaries, self._numbers = canaries, numbers
        self._examples = torch.from_numpy(np.flatnonzero(numbers < 0))
        self._params = list(trainable_parameters(model).values())
        self._inner: Engine | None = None
        if len(self._examples):
            rows = self._examples
            self._inner = canaries.inner(model, loss, map_tensors(lambda x: x[rows.to(x.device)], batch))
        self._geometry: Geometry | None = None

    def norms(self, geometry: Geometry) -> Tensor:
        """See `Engine.norms`. A canary that does not take part is like an example without a finite norm."""
        self._geometry = geometry
        result = torch.from_numpy(np.where(self._present(), _LENGTH, math.inf)).to(self._params[0].device)
        if self._inner is not None:
            result[self._examples.to(result.device)] = self._inner.norms(geometry)
        return result

    def weighted_sum(
        self, weights: Tensor, out: Mapping[Tensor, Tensor] | None = None, *, accumulate: bool = False
    ) -> Mapping[Tensor, Tensor]:
        """See `Engine.weighted_sum`."""
        assert self._geometry is not None
        result = empty_sums(self._params) if out is None else out
        if out is None or not accumulate:
            for total in result.values():
                total.zero_()
        if self._inner is not None:
            own = weights[self._examples.to(weights.device)]
            places = {p: self._canaries.places(p) for p in result}
            before = {p: total.view(-1)[places[p]] for p, total in result.items()}
            self._inner.weighted_sum(own, result, accumulate=True)
            for p, total in result.items():
                self._canaries.note(p, total.view(-1)[places[p]] - before[p], float(own.sum()))
        rows = self._present()
        mine = np.zeros(len(self._canaries.scores))
        np.add.at(mine, self._numbers[rows], weights.cpu().double().numpy()[rows])
        for p, total in result.items():
            self._canaries.add(p, total, self._geometry, mine)
        return result

    def _present(self) -> np.ndarray:
        """Which rows are canaries that take part."""
        rows: np.ndarray = (self._numbers >= 0) & self._canaries.included[self._numbers]
        return rows


class _Numbered(Dataset[Any]):
    """Each example with the number of the canary in its place, or -1."""

    def __init__(self, dataset: Dataset[Any], who: np.ndarray) -> None:
        self._dataset, self._who = dataset, who

    def __len__(self) -> int:
        return len(self._who)

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return int(self._who[index]), self._dataset[index]


class _NumberedCollate:
    """Joins numbers and examples, the examples as the run does."""

    def __init__(self, loader: Loader) -> None:
        self._collate = loader.collate_fn or default_collate

    def __call__(self, pairs: list[tuple[int, Any]]) -> tuple[Tensor, Any]:
        numbers, examples = zip(*pairs, strict=True)
        return torch.tensor(numbers), self._collate(list(examples))


def _at(
    geometry: Geometry, coordinates: Mapping[Tensor, tuple[Tensor, Tensor]]
) -> dict[Tensor, tuple[np.ndarray, np.ndarray]]:
    """Centre and scale at the canaries' coordinates, copied before the rule changes them."""
    result = {}
    for p, (_, places) in coordinates.items():
        values = []
        for value in (geometry.center_of(p), geometry.scale[p]):
            whole = torch.as_tensor(0.0 if value is None else value, dtype=torch.float64).cpu()
            values.append(whole.expand(p.shape).reshape(-1)[places].numpy().copy())
        result[p] = (values[0], values[1])
    return result
