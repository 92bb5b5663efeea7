"""The privacy arguments of a private trainer, besides its `TrainingArguments`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias

import torch

from adamas import _validate
from adamas.accounting.data_ledger import DataLedger
from adamas.accounting.ledger import Ledger
from adamas.engines import Loss
from adamas.rules import RULES
from adamas.run.options import RunOptions

RuleFactory: TypeAlias = Callable[..., torch.optim.Optimizer]
"""A class of optimizers, or a function of the parameters that makes one."""

DEFAULT_EPSILON = 8.0

_ANY_RECORDS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The guarantee of a private trainer, and how it is reached.

    Attributes:
        epsilon: The budget, for all planned steps. 8 if neither it nor noise_multiplier is given.
        delta: The delta of the guarantee; None takes 1/(10 N), for N records.
        allow_large_delta: Confirm a delta of 1/N or more.
        noise_multiplier: The noise relative to the sensitivity; give it instead of epsilon.
        max_epsilon: With noise_multiplier: the training stops before a step would exceed it.
        clip_norm: Radius to which the gradient of a record is clipped.
        rule: Steps on the private gradients: a name in `adamas.rules.RULES`, a class of optimizers, or a
            function that makes one from the parameters.
        rule_options: More arguments of the rule. Weight decay comes from the `TrainingArguments`, and so do
            learning rate, betas and eps if they are not the defaults there.
        loss: `loss(model, batch)`, one loss per record. None chooses it by the model:
            `adamas.integrations.losses.for_model`.
        sampling: A name in `adamas.sampling.SAMPLERS`.
        max_batch_size: Rows of every batch, for `sampling="truncated-poisson"`.
        accountant: "pld" or "rdp".
        noise: "reproducible" or "secure".
        seed: Of sampling and noise, which must then be as secret as the data. None draws a secret one from
            the operating system. `TrainingArguments.seed` is not used: it is public.
        engine: A name in `adamas.engines.ENGINES`, or "auto".
        spent: Earlier releases on the data. They count towards epsilon.
        data_ledger: The ledger of the data set, or its file: all runs on the data spend from its budget.

    Each one means the same as in `adamas.make_private`.

    Example:
        >>> Privacy(epsilon=3.0).rule
        'adam-bc'
        >>> Privacy().epsilon
        8.0
        >>> Privacy(epsilon=3.0, noise_multiplier=1.0)
        Traceback (most recent call last):
        ValueError: Expected exactly one of epsilon and noise_multiplier, got epsilon and noise_multiplier.
    """

    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    max_epsilon: float | None = None
    clip_norm: float = 1.0
    rule: str | RuleFactory = "adam-bc"
    rule_options: Mapping[str, Any] = field(default_factory=dict)
    loss: Loss | None = None
    sampling: str = "poisson"
    max_batch_size: int | None = None
    accountant: str = "pld"
    noise: str = "reproducible"
    seed: int | None = None
    engine: str = "auto"
    spent: Ledger | None = None
    data_ledger: str | Path | DataLedger | None = None
    allow_large_delta: bool = False

    def __post_init__(self) -> None:
        if self.epsilon is None and self.noise_multiplier is None:
            object.__setattr__(self, "epsilon", DEFAULT_EPSILON)
        _ = self.run_options(_ANY_RECORDS, batch_size=1, steps=1)  # checks what the run has, too
        if isinstance(self.rule, str):
            _validate.one_of(RULES, rule=self.rule)
        elif not callable(self.rule):
            raise TypeError(
                f"Expected rule={self.rule!r} to be a name in adamas.rules.RULES, a class of optimizers, or "
                "a function of the parameters that makes one. An optimizer itself would hold parameters that "
                "the trainer may replace."
            )
        if self.loss is not None and not callable(self.loss):
            raise TypeError(f"Expected loss={self.loss!r} to be a function loss(model, batch).")

    def run_options(self, records: int, **others: Any) -> RunOptions:
        """Returns the options of a run.

        Args:
            records: The number of records.
            **others: Options that come from the trainer.
        """
        own = {one.name: getattr(self, one.name) for one in fields(RunOptions) if hasattr(self, one.name)}
        own["delta"] = 1 / (10 * records) if self.delta is None else self.delta
        return RunOptions(**own | others)
