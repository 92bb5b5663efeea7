"""Shared by all checks: a row of the table, and the runs that are replayed."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from torch.utils.data import Dataset

from adamas._nests import named_tensors
from adamas.check.draws import loaded_batches
from adamas.check.full_batch import FullBatch, full_batch, spread, usable_places
from adamas.check.measures import agree, losses, same
from adamas.check.replay import MakeRun, examples_of, fresh_run
from adamas.loading import dataset_length, loads_rows
from adamas.run.loop import PrivateRun

T = TypeVar("T")

PASS, FAIL, NOT_APPLICABLE = "pass", "fail", "not applicable"

FALSE_ALARM = 1e-6
"""The probability that a statistical row fails although all is well."""

STEPS = 5
"""Steps that are trained before adaptive parts are examined again."""

# Seconds that a row may take for the examples of one stage, and the examples it examines in any case.
_SECONDS, _LEAST_LOOKS = 20.0, 2

Outcome = tuple[str, str]
"""A verdict, and what the replay showed."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: What was checked.
        verdict: "pass", "fail" or "not applicable".
        seen: What the replay showed.
        remedy: How to repair a failure; empty otherwise.
    """

    name: str
    verdict: str
    seen: str
    remedy: str = ""


@dataclass(frozen=True)
class Check:
    """A check with its name, and the remedy if it fails."""

    name: str
    remedy: str
    look: Callable[["Replay"], Outcome]


class Replay:
    """The runs of the user's function that checks replay, and a batch of the run's own size.

    Args:
        make_run: Returns a fresh run at each call.
        examples: How many examples of a batch are examined one by one.
    """

    def __init__(self, make_run: MakeRun, examples: int) -> None:
        self._make_run = make_run
        self._examples = examples

    def fresh(self) -> PrivateRun:
        """Returns a new run, which may release more than was planned."""
        run = fresh_run(self._make_run)
        if loads_rows(run.loader.dataset):
            return run
        return run._replaced(loader=run.loader.on(_Kept(run.loader.dataset)))

    @cached_property
    def still(self) -> PrivateRun:
        """A run for checks that use model, loss and sampler only."""
        return self.fresh()

    @cached_property
    def door(self) -> PrivateRun:
        """A run for checks that release, and update nothing."""
        return self.fresh()

    @cached_property
    def later(self) -> PrivateRun:
        """The same after `STEPS` steps, or as many as the run has."""
        run = self.fresh()
        for _ in islice(run, STEPS):
            pass
        return run

    @cached_property
    def draws(self) -> list[np.ndarray]:
        """The indices of the examples that the loader loads for the first steps."""
        return loaded_batches(fresh_run(self._make_run))

    @cached_property
    def batch(self) -> FullBatch:
        """A batch of the run's own size, with the examples that are examined one by one."""
        return full_batch(self.still, self._examples)

    def few(self) -> list[int]:
        """Returns the indices of a few usable examples, spread over the data set."""
        return list(self._few)

    @cached_property
    def _few(self) -> list[int]:
        places = spread(dataset_length(self.still.loader.dataset), self._examples)
        return usable_places(self.still, places)

    @cached_property
    def random(self) -> bool:
        """Whether the forward draws random values, as dropout does."""
        data = examples_of(self.still, self.batch.together)
        first = losses(self.still, data, step=0)
        return not all(agree(first, losses(self.still, data, step=step)) for step in range(1, 5))

    @cached_property
    def collates_at_random(self) -> bool:
        """Whether collate_fn draws random values."""
        batches = [examples_of(self.still, self.batch.together, state=state) for state in range(4)]
        first, *others = ([x for _, x in named_tensors(batch)] for batch in batches)
        return not all(same(a, b) for other in others for a, b in zip(first, other, strict=True))

    def in_time(self, items: Iterable[T]) -> Iterator[T]:
        """Yields items until time is up, at least two; in a data-parallel run, all of them."""
        end = time.monotonic() + _SECONDS if self.still.ranks is None else math.inf
        for count, item in enumerate(items):
            if count >= _LEAST_LOOKS and time.monotonic() > end:
                return
            yield item


class _Kept(Dataset[Any]):
    """Keeps each example as it was first loaded, so that augmentation does not disturb a replay."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset
        self._known: dict[int, Any] = {}

    def __len__(self) -> int:
        return dataset_length(self._dataset)

    def __getitem__(self, index: int) -> Any:
        if index not in self._known:
            self._known[index] = self._dataset[index]
        return self._known[index]
