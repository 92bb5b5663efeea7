"""What the checks share: a row of the table, and the runs on which it is replayed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from adamas._replay import MakeRun, examples_of, fresh_run
from adamas.engines import trainable_parameters
from adamas.loading import dataset_length
from adamas.run import PrivateRun, model_randomness

PASS, FAIL, NOT_APPLICABLE = "pass", "fail", "not applicable"

FALSE_ALARM = 1e-6
"""The probability with which a statistical row fails although all is well."""

STEPS = 5
"""Steps that are trained before what adapts is looked at again."""

Outcome = tuple[str, str]
"""A verdict, and what was seen."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: What was checked.
        verdict: "pass", "fail" or "not applicable".
        seen: What the replay showed.
        remedy: What to do about a failure; empty otherwise.
    """

    name: str
    verdict: str
    seen: str
    remedy: str = ""


@dataclass(frozen=True)
class Check:
    """A check by name, and what helps if it fails."""

    name: str
    remedy: str
    look: Callable[["Replay"], Outcome]


class Replay:
    """The runs of the user's function on which checks are replayed, and a few examples.

    Args:
        make_run: Returns a fresh run at each call.
        examples: How many examples a replay takes.
    """

    def __init__(self, make_run: MakeRun, examples: int) -> None:
        self._make_run = make_run
        self._examples = examples

    def fresh(self, *, budget: bool = True) -> PrivateRun:
        """A run of its own; without `budget` it may release more than was planned."""
        run = fresh_run(self._make_run)
        if type(run.loader.dataset) is not TensorDataset:
            run.loader.dataset = _Kept(run.loader.dataset)
        if not budget:
            run.budget = None
        return run

    @cached_property
    def still(self) -> PrivateRun:
        """A run for those who look at model, loss and sampler only."""
        return self.fresh()

    @cached_property
    def door(self) -> PrivateRun:
        """A run for those who release, and update nothing."""
        return self.fresh(budget=False)

    def places(self) -> list[int]:
        """Places of examples that are spread over the data set."""
        n = dataset_length(self.still.loader.dataset)
        spread = np.linspace(0, n - 1, min(n, self._examples)).astype(int)
        return [int(place) for place in np.unique(spread)]

    def examples(self, run: PrivateRun) -> Any:
        """The examples at `places()` as a batch."""
        return examples_of(run, self.places())

    @cached_property
    def random(self) -> bool:
        """Whether the forward draws random values, as dropout does."""
        run = self.still
        data = self.examples(run)
        first = losses(run, data, step=0)
        return not all(agree(first, losses(run, data, step=step)) for step in range(1, 5))


class _Kept(Dataset[Any]):
    """Examples as they were when they were first asked for: a replay is not about augmentation."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset
        self._known: dict[int, Any] = {}

    def __len__(self) -> int:
        return dataset_length(self._dataset)

    def __getitem__(self, index: int) -> Any:
        if index not in self._known:
            self._known[index] = self._dataset[index]
        return self._known[index]


def recorded_events(run: PrivateRun) -> int:
    """How many events the ledger holds."""
    return sum(count for _, count in run.ledger.entries)


def losses(run: PrivateRun, data: Any, *, step: int = 0) -> Tensor:
    """The losses of a batch, with the random values of a step."""
    with model_randomness(run.noise.seed, step), torch.no_grad():
        return run.loss(run.model, data).detach()


def gradients(run: PrivateRun, data: Any, example: int) -> dict[Tensor, Tensor]:
    """The gradient of one example's loss in a batch, by plain autograd."""
    params = list(trainable_parameters(run.model).values())
    with model_randomness(run.noise.seed, 0), torch.enable_grad():
        loss = run.loss(run.model, data)[example]
        found = torch.autograd.grad(loss, params, allow_unused=True, materialize_grads=True)
    return dict(zip(params, found, strict=True))


def distance(a: dict[Tensor, Tensor], b: dict[Tensor, Tensor]) -> float:
    """How far two gradients are apart, relative to the longer one; 0 if both vanish."""
    squares = [sum(float(g.double().square().sum()) for g in one.values()) for one in (a, b)]
    apart = sum(float((a[p].double() - b[p].double()).square().sum()) for p in a)
    return (apart / max(squares)) ** 0.5 if max(squares) > 0 else 0.0


def tolerance(run: PrivateRun) -> float:
    """What rounding may do to a gradient, relative to it, in the model's number types."""
    coarsest = max(torch.finfo(p.dtype).eps for p in trainable_parameters(run.model).values())
    return float(min(0.1, 1e4 * coarsest))


def agree(a: Tensor, b: Tensor) -> bool:
    """Whether two vectors of losses are equal but for rounding."""
    relative = min(0.1, 100 * torch.finfo(a.dtype).eps)
    return torch.allclose(a.double(), b.double(), rtol=relative, atol=relative, equal_nan=True)
