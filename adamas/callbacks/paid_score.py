"""Scores a model on private validation data: a noisy share of right answers, with a ledger of its own."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import dp_accounting
import torch
from dp_accounting import NeighboringRelation
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from adamas import _validate
from adamas._guards.state import Watch
from adamas._nests import map_tensors
from adamas._streams import Seed, seed_python_from_torch, torch_randomness
from adamas.accounting import calibrate
from adamas.accounting.data_ledger import DataLedger
from adamas.accounting.ledger import Ledger
from adamas.errors import BudgetError
from adamas.loading import dataset_length
from adamas.queries import noisy_counts


class PaidScore:
    """The share of right answers on private validation data, with noise.

    The validation records must not be in the training data: hold them out before the training, by a rule that
    does not look at them. Then each record is in one of the two. A training record costs what the run says,
    and a validation record what `ledger` says.

    The model sees one example at a time, so that no answer depends on another example.

    Without `data_ledger`, the budget lives in this object. A training that resumes makes a new object, so it
    needs `data_ledger`, a file that has each evaluation on disk before it is made.

    Args:
        right: `right(model, batch)` for a batch of one example: a tensor of one True or False.
        dataset: The validation data. Its length is public.
        epsilon: The budget of all evaluations together.
        delta: Its delta.
        evaluations: How many times the score may be computed. A run with `EarlyStopping` must have one for
            each evaluation of all its steps, even if it may stop before.
        collate_fn: Makes a batch from a list of one example; torch's default if None.
        data_ledger: The ledger of the validation data, or its file: all evaluations in all processes spend
            from its budget.
        seed: Makes the noise reproducible; anyone who knows it can remove the noise. Never use one number for
            two scores on the same data. None draws a secret one.

    Attributes:
        evaluations: As given.
        ledger: What the evaluations have released.
        noise_multiplier: The standard deviation of the noise, in examples.

    Example:
        >>> import torch
        >>> from adamas.callbacks import PaidScore
        >>> data = torch.utils.data.TensorDataset(torch.ones(200, 1), torch.ones(200))
        >>> score = PaidScore(lambda model, batch: model(batch[0])[:, 0] == batch[1], data,
        ...                   epsilon=1.0, delta=1e-5, evaluations=2)
        >>> 0.8 < score(torch.nn.Identity()) <= 1.0
        True
        >>> score.ledger.epsilon(1e-5) <= 1.0
        True
    """

    def __init__(
        self,
        right: Callable[[nn.Module, Any], Tensor],
        dataset: Dataset[Any],
        *,
        epsilon: float,
        delta: float,
        evaluations: int,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        data_ledger: str | Path | DataLedger | None = None,
        seed: int | None = None,
    ) -> None:
        if not callable(right):
            raise TypeError(f"Expected right={right!r} to be a function right(model, batch).")
        _validate.count(evaluations=evaluations)
        self._right, self._dataset, self._examples = right, dataset, dataset_length(dataset)
        if delta >= 1 / self._examples:
            raise ValueError(
                f"Expected delta={delta!r} < 1/N = {1 / self._examples:.3g} for N = {self._examples} "
                "examples."
            )
        if data_ledger is not None and seed is not None:
            raise ValueError(
                f"Expected seed=None with data_ledger, got seed={seed!r}: a training that resumes would draw "
                "the same noise for other counts."
            )
        self._made, self.evaluations, self._lock = 0, evaluations, threading.Lock()
        self._collate, self._seed = collate_fn or default_collate, seed
        self._data_ledger = _add_remove(data_ledger)
        self._account = uuid4().hex
        self.noise_multiplier = calibrate.noise_multiplier_for(
            lambda z: dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(z), evaluations),
            epsilon=epsilon,
            delta=delta,
        )
        self.ledger = Ledger()

    @property
    def left(self) -> int:
        """Evaluations that this object may still make."""
        return self.evaluations - self._made

    @property
    def outlives_the_process(self) -> bool:
        """Whether a process that resumes knows the spending of this one."""
        return self._data_ledger is not None

    def __call__(self, model: nn.Module) -> float:
        """Returns the noisy share of right answers, between 0 and 1."""
        with self._lock:
            return self._score(model)

    def _score(self, model: nn.Module) -> float:
        if not self.left:
            raise BudgetError(
                f"The budget of this score pays for {self.evaluations} evaluations; all were made. Evaluate "
                "less often (EarlyStopping(every=...)), or raise evaluations."
            )
        count = self._count(model)
        self._made += 1
        if self._data_ledger is not None:
            event = dp_accounting.GaussianDpEvent(self.noise_multiplier)
            self._data_ledger.reserve(self._account, [(event, self._made)], title=type(self).__name__)
        seed = None
        if self._seed is not None:
            words = Seed(self._seed).words("paid score", self._made, count=8)
            seed = int.from_bytes(words.tobytes(), "little")
        (noisy,) = noisy_counts(
            [count], noise_multiplier=self.noise_multiplier, ledger=self.ledger, seed=seed
        )
        return min(max(float(noisy) / self._examples, 0.0), 1.0)

    def _count(self, model: nn.Module) -> int:
        device = next((p.device for p in model.parameters()), None)
        count = 0
        with (
            torch_randomness(0),
            Watch().over(model, self._right, turn=0, reads_values=True) as state,
        ):
            right, start = state.between(self._right), torch.get_rng_state()
            for place in range(self._examples):
                torch.set_rng_state(start)  # what one example draws changes nothing for the next
                seed_python_from_torch()
                batch = map_tensors(lambda x: x.to(device), self._collate([self._dataset[place]]))
                torch.set_rng_state(start)
                answer = right(model, batch)
                if not isinstance(answer, Tensor) or answer.shape != (1,) or answer.dtype != torch.bool:
                    raise TypeError(
                        "Expected right(model, batch) to return a tensor of one True or False for a batch of "
                        f"one example, got {_kind(answer)}."
                    )
                count += bool(answer)
            state.check()
        return count


def _add_remove(ledger: str | Path | DataLedger | None) -> DataLedger | None:
    """Opens the ledger of the validation data; raises if it counts under another relation."""
    if ledger is None:
        return None
    opened = ledger if isinstance(ledger, DataLedger) else DataLedger(ledger)
    if opened.relation != NeighboringRelation.ADD_OR_REMOVE_ONE:
        raise ValueError(
            f"Expected data_ledger under the relation ADD_OR_REMOVE_ONE, got {opened.relation.name}."
        )
    return opened


def _kind(answer: object) -> str:
    """Describes an answer without its value, which is private."""
    if isinstance(answer, Tensor):
        return f"one of shape {tuple(answer.shape)} and {answer.dtype}"
    return type(answer).__name__
