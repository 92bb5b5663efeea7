"""Defines a federated algorithm: functions of state that know nothing of messages and machines.

The server starts a state and sends a part of it to clients. A client turns that part and its data into an
update. The server turns updates into the next state. State and updates are `Records`: tensors by role and
name.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from adamas import _validate
from adamas.engines import trainable_parameters
from adamas.federated.arrays import Arrays, Records, copied, divided_sum, sums
from adamas.federated.client import Client

SCHEDULES = ("constant", "cosine")
"""Schedules of the local learning rate over the rounds."""


@dataclass(frozen=True)
class Round:
    """A round of the training.

    Attributes:
        number: 0, 1, ...
        total: Number of rounds in the training.
        local_steps: Steps that each client makes.
        lost: Earlier rounds without a usable update.
    """

    number: int
    total: int
    local_steps: int
    lost: int = 0


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """A federated algorithm with its hyperparameters.

    A subclass defines `train`. It also overrides `start` and `aggregate` if its state holds more than the
    parameters.

    Attributes:
        lr: Learning rate of the local steps.
        schedule: "constant", or "cosine" for a rate that falls to 0 over the rounds.
        queries: Releases per local step, all on the same batch.
        sends: Records of the state that clients receive.
        uploads: Records of an update.
        averages: Uploaded records that the server averages over the clients that answered.
        non_negative: Records whose values must not be negative: second moments.
        clients_remember: Whether clients keep anything between rounds.
    """

    lr: float
    schedule: str = "constant"

    queries: ClassVar[int] = 1
    sends: ClassVar[tuple[str, ...]] = ("parameters",)
    uploads: ClassVar[tuple[str, ...]] = ("increment",)
    averages: ClassVar[tuple[str, ...]] = ()
    non_negative: ClassVar[tuple[str, ...]] = ("second-moments",)
    clients_remember: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _validate.positive(lr=self.lr)
        _validate.one_of(SCHEDULES, schedule=self.schedule)

    def rate(self, round: Round) -> float:
        """Returns the local learning rate of a round."""
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * round.number / round.total)) / 2
        return self.lr

    def direction(self, updates: Sequence[Records], expected: float, round: Round) -> Arrays:
        """Expresses the mean step of the clients as a gradient: -sum of increments / (S K eta)."""
        length = expected * round.local_steps * self.rate(round)
        return divided_sum([update["increment"] for update in updates], -length)

    def start(self, model: nn.Module) -> Records:
        """Makes the state before the first round, from a model with its initial parameters."""
        return {"parameters": copied(dict(trainable_parameters(model)))}

    def broadcast(self, state: Records) -> Records:
        """Returns the part of the state that clients receive."""
        return {name: state[name] for name in self.sends}

    @abstractmethod
    def train(self, client: Client, received: Records, round: Round) -> Records:
        """Trains a client's model for a round, from what it received, and returns its update."""

    def aggregate(
        self, state: Records, updates: Sequence[Records], *, expected: float, clients: int, round: Round
    ) -> Records:
        """Computes the state of the next round.

        Args:
            state: The state of this round.
            updates: The updates that arrived, in the order of the clients.
            expected: Expected number of updates: the divisor of sums, however many arrived.
            clients: Number of clients in the training.
            round: This round.
        """
        increment = divided_sum([update["increment"] for update in updates], expected)
        averaged = {name: divided_sum([one[name] for one in updates], len(updates)) for name in self.averages}
        return state | {"parameters": sums(state["parameters"], increment)} | averaged
