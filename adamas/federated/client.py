"""A client's side of federated training: its data, its private steps, and what it keeps between rounds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from adamas.accounting.ledger import Ledger
from adamas.engines import trainable_parameters
from adamas.errors import UnsupportedError
from adamas.federated.arrays import Arrays, Records
from adamas.federated.checks import check_arrays
from adamas.federated.local_runs import LocalRuns
from adamas.rules.base import Rule
from adamas.run.loop import PrivateRun
from adamas.run.rule_state import RuleState


@dataclass
class Client(LocalRuns):
    """A client: its data, how it makes them private, and what it keeps between rounds.

    It takes the arguments of `LocalRuns`, and:

    Attributes:
        ledger: Everything that this client has released, over all rounds.
        memory: What an algorithm keeps here for the next round, such as a control variate.
    """

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
        run = self.make_run(rule, steps)
        try:
            yield run
        except UnsupportedError:
            self.forget_probe()  # the next run chooses its engine anew
            raise
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
