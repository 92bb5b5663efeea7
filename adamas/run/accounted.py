"""The account of a run: what it may release, and what it has spent."""

from typing import Any, NoReturn

from adamas.accounting import Spending
from adamas.accounting.data_ledger import DataLedger
from adamas.accounting.ledger import Ledger


class Accounted:
    """The part of a run that reads and extends its spending.

    Args:
        spending: The owner of plan, ledger, budget, reservations and journals.
    """

    def __init__(self, spending: Spending) -> None:
        self._spending = spending

    def __copy__(self) -> NoReturn:
        raise TypeError(
            "A run cannot be copied: both copies would spend, and know of their own releases only. Make "
            "another run with make_private, or save this one and load the file."
        )

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()

    @property
    def steps(self) -> int:
        """Steps of the whole run; `extend` changes them."""
        return self._spending.plan.steps

    @property
    def steps_done(self) -> int:
        """Steps whose release was made."""
        return self._spending.steps_done

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise on a sum of sensitivity 1; `extend` changes it."""
        return self._spending.plan.noise_multiplier

    @property
    def budget(self) -> float | None:
        """The largest epsilon that the run may spend; None for no limit. `extend` changes it."""
        return self._spending.plan.budget

    @property
    def delta(self) -> float:
        """The delta of the guarantee."""
        return self._spending.delta

    @property
    def accountant(self) -> str:
        """The accountant that computes epsilon."""
        return self._spending.accountant

    @property
    def ledger(self) -> Ledger:
        """All releases so far. Record here what is released elsewhere on the same data."""
        return self._spending.ledger

    @property
    def data_ledger(self) -> DataLedger | None:
        """What all runs on the data set spend together; None for no such ledger."""
        return self._spending.data_ledger

    def epsilon(self, accountant: str | None = None, *, delta: float | None = None) -> float:
        """Returns the epsilon spent so far, at `delta` or else at the run's delta."""
        return self._spending.epsilon(accountant, delta=delta)

    def epsilon_bound(self) -> float:
        """Returns an upper bound on `epsilon()` that is cheap enough for every step.

        It is never below `epsilon()`, equal to it after the last step, and never above the budget that pays
        for the run. It composes about 30 times over a whole run.
        """
        return self._spending.epsilon_bound()

    def close(self) -> None:
        """Returns to the data set's ledger what the run has reserved and not released.

        The last step does this by itself. A run that stops early and is not closed has spent its whole
        reservation: a process that died may have released it.
        """
        self._spending.close()

    def extend(
        self, *, steps: int, epsilon: float | None = None, noise_multiplier: float | None = None
    ) -> None:
        """Gives the run more steps, and an explicit new budget.

        Args:
            steps: How many more than those that were done.
            epsilon: The new budget for all releases of the run, past and future. Noise for the new steps is
                calibrated to the remaining budget.
            noise_multiplier: Or the noise of the new steps; the run then has no budget any more.

        Raises:
            ValueError: If the budget is spent already.

        Example:
            >>> import torch, adamas
            >>> from torch.nn import functional as F
            >>> model = torch.nn.Linear(2, 2)
            >>> data = torch.utils.data.TensorDataset(torch.randn(50, 2), torch.ones(50).long())
            >>> run = adamas.make_private(
            ...     model, adamas.rules.Adam(model.parameters()), data,
            ...     lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
            ...     batch_size=10, steps=5, epsilon=2.0, delta=1e-3, accountant="rdp")
            >>> for _ in run: pass
            >>> run.extend(steps=5, epsilon=3.0)
            >>> for _ in run: pass
            >>> run.steps_done, 2.9 < run.epsilon() <= 3.0
            (10, True)
        """
        self._spending.extend(steps=steps, epsilon=epsilon, noise_multiplier=noise_multiplier)
