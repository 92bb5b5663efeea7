"""Pays for private statistics from the budget of a training, before they are released."""

from dataclasses import dataclass, field, replace
from typing import Self
from uuid import uuid4

import dp_accounting
import torch
from torch.utils.data import TensorDataset

from adamas import _validate
from adamas._words import rounded_up
from adamas.accounting import calibrate
from adamas.accounting.data_ledger import DataLedger
from adamas.accounting.events import Entries
from adamas.accounting.ledger import Ledger
from adamas.accounting.plan import units
from adamas.engines import Loss
from adamas.run.calibration import calibrated
from adamas.run.options import RunOptions
from adamas.run.validation import validated


@dataclass(frozen=True)
class Payment:
    """Pays for statistics, and for the training that follows them.

    Attributes:
        event: The one release of all statistics.
        options: Those of the training. Their budget also pays for the statistics.
        ledger: Records the release.
        data_ledger: The ledger of the data set, in which both are reserved; None for none.
        account: Their account there.
    """

    event: dp_accounting.GaussianDpEvent
    options: RunOptions
    ledger: Ledger
    data_ledger: DataLedger | None
    account: str = field(default_factory=lambda: uuid4().hex)

    @classmethod
    def made(
        cls,
        model: torch.nn.Module,
        rule: torch.optim.Optimizer,
        loss: Loss,
        options: RunOptions,
        rows: int,
        share: float,
    ) -> Self:
        """Plans statistics and training, checks the plan and reserves it.

        Args:
            model: The model.
            rule: Its rule.
            loss: Its loss.
            options: Of the training.
            rows: The number of rows.
            share: The share of the budget that pays for the statistics.

        Raises:
            ValueError, BudgetError: If the training could not be made. Nothing is then released.
        """
        _validate.probability(statistics_share=share)
        assert options.epsilon is not None
        try:
            z = calibrate.noise_multiplier_for(
                dp_accounting.GaussianDpEvent,
                epsilon=share * options.epsilon,
                delta=options.delta,
                accountant=options.accountant,
            )
        except ValueError as error:  # names the part of the budget, which the user did not give
            raise ValueError(
                f"The statistics have statistics_share={share!r} of epsilon={options.epsilon!r}: {error}"
            ) from error
        event = dp_accounting.GaussianDpEvent(z)
        planned = replace(options, spent=Ledger.of([(event, 1)], Ledger().relation))
        arguments = validated(model, rule, TensorDataset(torch.zeros(rows)), loss, planned)
        plan, sampler = calibrated(arguments), arguments.sampler
        ledger = Ledger()
        made = cls(event, replace(options, spent=ledger, data_ledger=None), ledger, arguments.data_ledger)
        if made.data_ledger is not None:
            entries = [(event, 1), (plan.event(sampler), units(plan.steps, sampler))]
            made.data_ledger.reserve(made.account, entries, title="a table with private statistics")
        return made

    def settle(self, entries: Entries) -> None:
        """Replaces the reservation with what was released."""
        if self.data_ledger is not None:
            self.data_ledger.settle(self.account, entries)

    def words(self, histograms: int) -> str:
        """Returns a sentence on the statistics and their own cost."""
        delta = self.options.delta
        return (
            f" This includes noisy histograms of {histograms} columns, from which bounds or class weights "
            f"were computed, and which alone are ({rounded_up(self.ledger.epsilon(delta))}, {delta:g})-"
            "differentially private."
        )
