"""The arguments of a suggestion: public sizes, a budget, and limits of time and memory."""

import math
from dataclasses import dataclass

from adamas import _validate
from adamas._words import duration
from adamas.accounting.ledger import ACCOUNTANTS

FEWEST_EXAMPLES = 100
"""With fewer examples there is no evidence from trials, and the noise leaves little signal."""

_SECONDS = 3600


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of `adamas.suggest`, checked.

    Attributes:
        n: Number of training examples.
        parameters: Number of trainable parameters.
        epsilon: The budget.
        delta: The delta of the budget.
        epochs: Passes over the data; None leaves them open.
        hours: Time for the training; None for no limit.
        examples_per_second: Speed of the private training.
        memory: Bytes for the optimizer's state; None for no limit.
        accountant: A name in `ACCOUNTANTS`.
    """

    n: int
    parameters: int
    epsilon: float
    delta: float
    epochs: int | None = None
    hours: float | None = None
    examples_per_second: float | None = None
    memory: float | None = None
    accountant: str = "pld"

    def __post_init__(self) -> None:
        _validate.count(n=self.n, parameters=self.parameters)
        if self.n < FEWEST_EXAMPLES:
            raise ValueError(
                f"Expected n={self.n} >= {FEWEST_EXAMPLES}: there is no evidence for fewer examples. Collect "
                "more, or choose the settings yourself and give them to make_private."
            )
        _validate.positive(epsilon=self.epsilon)
        _validate.delta(delta=self.delta)
        if self.delta >= 1 / self.n:
            raise ValueError(
                f"Expected delta={self.delta!r} < 1/n = {1 / self.n:.3g}: with more, publishing a random "
                "record would count as private. Lower delta, or leave it out for 1/(10 n)."
            )
        if self.memory is not None:
            _validate.non_negative(memory=self.memory)
        _validate.one_of(ACCOUNTANTS, accountant=self.accountant)
        self._check_time()

    def _check_time(self) -> None:
        if self.epochs is not None:
            _validate.count(epochs=self.epochs)
            if self.hours is not None:
                raise ValueError("Expected at most one of epochs and hours, got both. Leave one out.")
        if self.examples_per_second is not None:
            _validate.positive(examples_per_second=self.examples_per_second)
        if self.hours is None:
            return
        _validate.positive(hours=self.hours)
        if self.examples_per_second is None:
            raise ValueError(
                f"Expected examples_per_second with hours={self.hours!r}. Measure it: the batch size of a "
                "short private run on random data, times its steps per second."
            )
        if not self.affordable_epochs:
            one = self.n / self.examples_per_second
            raise ValueError(
                f"Expected hours={self.hours!r} to be enough for one pass over n={self.n} examples at "
                f"examples_per_second={self.examples_per_second!r}, which takes {duration(one)}. Give "
                f"{math.ceil(one / 36) / 100:g} hours or more, train fewer parameters, or use a faster "
                "machine."
            )

    @property
    def affordable_epochs(self) -> int | None:
        """Returns how many whole passes the time allows; None without a limit."""
        if self.hours is None or self.examples_per_second is None:
            return None
        return int(self.hours * _SECONDS * self.examples_per_second // self.n)

    def seconds(self, epochs: int) -> float | None:
        """Returns the time of a number of passes; None if the speed is not known."""
        return None if self.examples_per_second is None else epochs * self.n / self.examples_per_second
