"""A client's side of federated training: its data, its private steps, and what it keeps between rounds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from adamas.accounting.ledger import Ledger
from adamas.engines import Loss, trainable_parameters
from adamas.federated.arrays import Arrays, Records
from adamas.federated.checks import check_arrays
from adamas.rules.base import Rule
from adamas.run.loop import PrivateRun
from adamas.run.make import make_private
from adamas.run.rule_state import RuleState


@dataclass
class Client:
    """A client: its data, how it makes them private, and what it keeps between rounds.

    Attributes:
        model: The architecture. Its parameters are overwritten by what the server sends.
        dataset: The client's own examples.
        loss: A function of model and batch that returns one loss per example.
        batch_size: Expected number of examples per step.
        noise_multiplier: Noise multiplier of each release; 0 if the server adds the noise.
        clip_norm: Clipping norm of an example's gradient; infinite if the server clips.
        delta: The delta of the guarantee.
        seed: Seed of this round's sampling and noise; None draws a secret one.
        engine: A name in `adamas.engines.ENGINES`, or "auto".
        micro_batch_size: Maximum examples processed at once.
        allow_large_delta: See `make_private`.
        ledger: Everything that this client has released, over all rounds.
        memory: What an algorithm keeps here for the next round, such as a control variate.
    """

    model: nn.Module
    dataset: Dataset[Any]
    loss: Loss
    batch_size: int
    noise_multiplier: float
    clip_norm: float
    delta: float
    seed: int | None = None
    engine: str = "auto"
    micro_batch_size: int | None = None
    allow_large_delta: bool = False
    ledger: Ledger = field(default_factory=Ledger)
    memory: Records = field(default_factory=dict)

    @property
    def parameters(self) -> Arrays:
        """The trainable parameters by name: the tensors themselves."""
        return dict(trainable_parameters(self.model))

    def load(self, values: Arrays) -> None:
        """Overwrites the parameters."""
        mine = self.parameters
        check_arrays("parameters", values, mine)
        with torch.no_grad():
            for name, p in mine.items():
                p.copy_(values[name])

    @contextmanager
    def private_run(self, rule: Rule, steps: int) -> Iterator[PrivateRun]:
        """Makes a run of `steps` private steps. Its releases are charged to the ledger, even if it fails."""
        RuleState.of(rule, adopted=True)  # its moments are the server's, which are public
        run = make_private(
            self.model,
            rule,
            self.dataset,
            self.loss,
            batch_size=self.batch_size,
            steps=steps,
            noise_multiplier=self.noise_multiplier,
            clip_norm=self.clip_norm,
            delta=self.delta,
            seed=self.seed,
            engine=self.engine,
            micro_batch_size=self.micro_batch_size,
            allow_large_delta=self.allow_large_delta,
            progress=False,
        )
        try:
            yield run
        finally:
            for event, count in run.ledger.entries:
                self.ledger.record(event, count)

    def train(self, rule: Rule, steps: int) -> None:
        """Makes `steps` private steps of a rule, with one release each."""
        with self.private_run(rule, steps) as run:
            for _ in run:
                pass


def by_parameter(client: Client, arrays: Arrays) -> dict[Tensor, Tensor]:
    """Maps each parameter of the client to its entry in `arrays`, for a rule."""
    return {p: arrays[name] for name, p in client.parameters.items()}
