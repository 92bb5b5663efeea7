"""Scores a model on private validation data: a noisy share of right answers, with a ledger of its own."""

from collections.abc import Callable
from typing import Any

import dp_accounting
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from adamas import _validate
from adamas._guards.state import Watch
from adamas._nests import map_tensors
from adamas._streams import torch_randomness
from adamas.accounting import calibrate
from adamas.accounting.ledger import Ledger
from adamas.errors import BudgetError
from adamas.loading import dataset_length
from adamas.queries import noisy_counts


class PaidScore:
    """The share of right answers on private validation data, with noise.

    The validation data must be other records than the training data, held out before the training by a rule
    that does not look at them. A training record then costs what the run says, and a validation record what
    `ledger` says; each record is in one of them only.

    The model sees one example at a time, so that no answer depends on another example.

    Args:
        right: `right(model, batch)` for a batch of one example: a tensor of one True or False.
        dataset: The validation data. How many examples it has is public.
        epsilon: The budget of all evaluations together.
        delta: Its delta.
        evaluations: How often the score may be asked for.
        collate_fn: Makes a batch of a list of one example; torch's default if None.
        seed: Makes the noise reproducible; whoever knows it can remove it. None draws a secret one.

    Attributes:
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
        self._delta, self._left, self._evaluations = delta, evaluations, evaluations
        self._collate, self._seed = collate_fn or default_collate, seed
        self.noise_multiplier = calibrate.noise_multiplier_for(
            lambda z: dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(z), evaluations),
            epsilon=epsilon,
            delta=delta,
        )
        self.ledger = Ledger()

    def __call__(self, model: nn.Module) -> float:
        """Returns the noisy share of right answers, between 0 and 1."""
        if not self._left:
            raise BudgetError(
                f"The budget of this score pays for {self._evaluations} evaluations, which were made. Ask "
                "less often (EarlyStopping(every=...)), or plan more evaluations."
            )
        count = self._count(model)
        self._left -= 1
        seed = None if self._seed is None else self._seed + self._left
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
                batch = map_tensors(lambda x: x.to(device), self._collate([self._dataset[place]]))
                torch.set_rng_state(start)  # what one example draws changes nothing for the next
                answer = right(model, batch)
                if not isinstance(answer, Tensor) or answer.shape != (1,) or answer.dtype != torch.bool:
                    raise TypeError(
                        "Expected right(model, batch) to return a tensor of one True or False for a batch of "
                        f"one example, got {_kind(answer)}."
                    )
                count += bool(answer)
            state.check()
        return count


def _kind(answer: object) -> str:
    """Describes an answer without its value, which is private."""
    if isinstance(answer, Tensor):
        return f"one of shape {tuple(answer.shape)} and {answer.dtype}"
    return type(answer).__name__
