"""Plants canaries in a run, gradients that a privacy audit recognises, and watches its releases for them."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from adamas._nests import map_tensors
from adamas.engines import Engine, Loss, trainable_parameters
from adamas.engines.base import empty_sums
from adamas.geometry import Geometry
from adamas.graphs.samplers import TermSampler
from adamas.loading import Loader, dataset_length
from adamas.privatize import PrivateGradient
from adamas.run.loop import PrivateRun
from adamas.sampling import Shuffled, TruncatedPoisson

_LENGTH = 100.0  # of a canary's whitened gradient, before it is clipped to 1
_MOST = 1000
_DELTA_SHARE = 0.05  # m delta, above which the theorem of the audit leaves nothing to see


class Canaries:
    """Canaries in a run: where they are, what they add to a batch, and each canary's membership score.

    A canary takes the place of one example. Among terms of a graph, it is a node that changes as many terms
    as a node may: if it takes part they all have its gradient, and the opposite gradient if not.

    Args:
        run: A fresh run. Its model and rule are trained.
        count: How many canaries; None for as many as make sense.
        generator: Draws places, coordinates and coins.

    Attributes:
        run: A rehearsal of the run, which trains with the canaries.
        included: Whether each canary takes part.
        signs: The sign of each canary's gradient; 0 for none.
        scores: How likely each canary is to take part, as a sum of log-likelihood ratios.
        who: For each place of the data set the number of its canary, -1 for none.
    """

    def __init__(self, run: PrivateRun, count: int | None, generator: np.random.Generator) -> None:
        n = dataset_length(run.loader.dataset)
        params = list(trainable_parameters(run.model).values())
        sizes = np.cumsum([0, *(p.numel() for p in params)])
        sampler = run.loader.sampler
        of_node = isinstance(sampler, TermSampler)
        terms = sampler.terms if isinstance(sampler, TermSampler) else 1
        most = min(n // terms, int(sizes[-1]))
        if count is None:
            count = max(1, min(_MOST, n // (2 * terms), int(sizes[-1]), int(_DELTA_SHARE / run.delta)))
        if count > most:
            raise ValueError(
                f"Expected canaries={count} <= {most}: each takes the place of {terms} of {n} examples, and "
                f"one of {sizes[-1]} parameters. Give runs= for more."
            )
        self._make_inner = run.make_engine
        self.included = generator.random(count) < 0.5
        self.signs = np.where(self.included, 1.0, -1.0 if of_node else 0.0)
        self.scores = np.zeros(count)
        # -1 for an example, else the number of the canary in its place.
        self.who = np.full(n, -1)
        self.who[generator.choice(n, count * terms, replace=False)] = np.arange(count).repeat(terms)
        flat = generator.choice(int(sizes[-1]), count, replace=False)
        owner = np.searchsorted(sizes, flat, side="right") - 1
        self._coordinates: dict[Tensor, tuple[Tensor, Tensor]] = {
            p: (torch.from_numpy(np.flatnonzero(owner == i)), torch.from_numpy(flat[owner == i] - sizes[i]))
            for i, p in enumerate(params)
        }
        self._known = np.zeros(count)
        self._geometry = _at(run.geometry(), self._coordinates)
        self.run = run._replaced(loader=self._numbered(run.loader), engine=self._make_engine)

    def _numbered(self, loader: Loader) -> Loader:
        """Returns a loader whose batches hold the number of the canary in the place of each example."""
        return Loader(
            _Numbered(loader.dataset, self.who),
            loader.sampler,
            collate_fn=_NumberedCollate(loader),
            micro_batch_size=loader.micro_batch_size,
            num_workers=loader.num_workers,
            device=loader.device,
        )

    def watch(self, release: PrivateGradient) -> None:
        """Adds to each score the log-likelihood ratio of a release: canary included against not."""
        sampler, z = self.run.loader.sampler, self.run.noise_multiplier
        seen = np.zeros(len(self.scores))
        for p, (numbers, places) in self._coordinates.items():
            c, s = self._geometry[p]
            value = release.mean[p].reshape(-1)[places.to(p.device)].double().cpu().numpy()
            seen[numbers.numpy()] = (value - c) / s * sampler.batch_size
        seen -= self._known
        if isinstance(sampler, Shuffled):  # whose batches may be known
            drawn = self.who[sampler.indices(self.run.steps_done - 1).indices]
            present = np.zeros(len(self.scores), dtype=bool)
            present[drawn[drawn >= 0]] = True
            seen = np.where(present, likelihood_ratio(seen, 1.0, z), 0.0)
        elif isinstance(sampler, TermSampler):
            weights = sampler.plan(max(z, 1.0), 1).event.probabilities()
            seen = terms_likelihood_ratio(seen, weights, z)
        else:
            seen = likelihood_ratio(seen, sampler.rate, z)
        self.scores += np.nan_to_num(seen)  # what is not a number tells nothing
        self._known = np.zeros(len(self.scores))
        self._geometry = _at(self.run.geometry(), self._coordinates)

    def _make_engine(self, model: nn.Module, loss: Loss, data: Any) -> Engine:
        numbers, batch = data
        return _Planted(self, numbers.cpu().numpy(), model, loss, batch)

    def inner(self, model: nn.Module, loss: Loss, batch: Any) -> Engine:
        """Makes the run's own engine, for the examples."""
        return self._make_inner(model, loss, batch)

    def add(self, p: Tensor, out: Tensor, geometry: Geometry, weights: np.ndarray) -> None:
        """Adds the weighted gradients `c + s L e` of the canaries to a sum, with the sign of each."""
        c, s = geometry.center_of(p), geometry.scale[p]
        if c is not None:
            out.add_(c, alpha=float(weights.sum()))
        numbers, places = self._coordinates[p][0], self.places(p)
        added = torch.from_numpy(weights * self.signs)[numbers].to(out) * _LENGTH
        scale = s.expand(p.shape).reshape(-1)[places] if isinstance(s, Tensor) else s
        out.view(-1).index_add_(0, places, added * scale)

    def note(self, p: Tensor, added: Tensor, weight: float) -> None:
        """Notes the examples' share of the canaries' coordinates, which the auditor knows."""
        if isinstance(self.run.loader.sampler, TruncatedPoisson):
            return  # who was cut away tells of the canaries
        numbers, _ = self._coordinates[p]
        c, s = self._geometry[p]
        batch_size = self.run.loader.sampler.batch_size
        self._known[numbers.numpy()] += (added.double().cpu().numpy() - weight * c) / s * batch_size

    def places(self, p: Tensor) -> Tensor:
        """Returns the canaries' coordinates in a parameter."""
        return self._coordinates[p][1].to(p.device)


def likelihood_ratio(seen: np.ndarray, q: float, z: float) -> np.ndarray:
    """Computes the log-likelihood ratio of a value with a canary, sampled at rate q, against without it."""
    if z == 0:
        return seen
    with np.errstate(all="ignore"):
        ratio: np.ndarray = np.logaddexp(
            math.log1p(-q) if q < 1 else -np.inf, math.log(q) + (seen - 0.5) / z**2
        )
    return ratio


def terms_likelihood_ratio(seen: np.ndarray, probabilities: np.ndarray, z: float) -> np.ndarray:
    """Computes the log-likelihood ratio of a value with a node against with its opposite.

    Args:
        seen: The values.
        probabilities: The probabilities of 0, 1, ... terms of the node in a batch.
        z: The noise multiplier.
    """
    if z == 0:
        return seen
    counts = np.arange(len(probabilities))
    with np.errstate(divide="ignore"):
        logarithms = np.log(probabilities) - counts**2 / (2 * z**2)
    exponents = seen[:, None] * counts / z**2
    ratio: np.ndarray = logsumexp(logarithms + exponents, axis=1) - logsumexp(logarithms - exponents, axis=1)
    return ratio


def noiseless_threshold(run: PrivateRun, steps: int) -> float:
    """Returns the score that separates sampled canaries from others, if there is no noise."""
    sampler = run.loader.sampler
    if isinstance(sampler, Shuffled | TermSampler):
        return 0.0
    out, once = likelihood_ratio(np.array([0.0, 1.0]), sampler.rate, run.noise_multiplier)
    return float(steps * out + (once - out) / 2)


class _Planted:
    """An engine for a batch with canaries, which the run's own engine computes without them."""

    def __init__(
        self, canaries: Canaries, numbers: np.ndarray, model: nn.Module, loss: Loss, batch: Any
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
        """Returns which rows are canaries that have a gradient."""
        rows: np.ndarray = (self._numbers >= 0) & (self._canaries.signs[self._numbers] != 0)
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
    """Joins numbers, and joins examples as the run does."""

    def __init__(self, loader: Loader) -> None:
        self._collate = loader.collate_fn or default_collate

    def __call__(self, pairs: list[tuple[int, Any]]) -> tuple[Tensor, Any]:
        numbers, examples = zip(*pairs, strict=True)
        return torch.tensor(numbers), self._collate(list(examples))


def _at(
    geometry: Geometry, coordinates: Mapping[Tensor, tuple[Tensor, Tensor]]
) -> dict[Tensor, tuple[np.ndarray, np.ndarray]]:
    """Copies center and scale at the canaries' coordinates, before the rule changes them."""
    result = {}
    for p, (_, places) in coordinates.items():
        values = []
        for value in (geometry.center_of(p), geometry.scale[p]):
            whole = torch.as_tensor(0.0 if value is None else value, dtype=torch.float64).cpu()
            values.append(whole.expand(p.shape).reshape(-1)[places].numpy().copy())
        result[p] = (values[0], values[1])
    return result
