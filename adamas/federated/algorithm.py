"""What a federated algorithm is: plain functions of state, which know nothing of messages and machines.

A server starts a state and sends a part of it to clients; a client turns it and its data into an update; the
server turns updates into the next state. State and updates are `Records`: groups of tensors by name.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from adamas import _validate
from adamas._numerics.sums import accumulation_dtype
from adamas.accounting.ledger import Ledger
from adamas.engines import Loss, trainable_parameters
from adamas.federated.checks import check_arrays
from adamas.rules.base import Rule
from adamas.run.loop import PrivateRun
from adamas.run.make import make_private
from adamas.run.rule_state import RuleState

Arrays: TypeAlias = dict[str, Tensor]
"""Tensors by name, mostly one for each trainable parameter."""

Records: TypeAlias = dict[str, Arrays]
"""Groups of tensors by what they are: "parameters", "increment", "control", ..."""

SCHEDULES = ("constant", "cosine")
"""How a local learning rate may change from round to round."""


@dataclass(frozen=True)
class Round:
    """A round of the training.

    Attributes:
        number: 0, 1, ...
        total: Rounds in all.
        local_steps: Steps of a client in each round.
        lost: Earlier rounds of which no update came.
    """

    number: int
    total: int
    local_steps: int
    lost: int = 0


@dataclass
class Client:
    """A client's side: its data, how it makes them private, and what it keeps from round to round.

    Attributes:
        model: The architecture; its parameters are overwritten by what the server sends.
        dataset: The client's own examples.
        loss: One loss per example.
        batch_size: Expected number of examples of a step.
        noise_multiplier: Of each release; 0 where the server adds the noise.
        clip_norm: To which an example's gradient is clipped; infinite where the server clips.
        delta: Of the guarantee.
        seed: Of this round's sampling and noise; None takes a secret one.
        engine: A name in `adamas.engines.ENGINES`, or "auto".
        micro_batch_size: Most examples that are processed at a time.
        allow_large_delta: See `make_private`.
        ledger: What this client has released, in all rounds.
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
        """A run of so many private steps, which the ledger is charged for, also if it breaks off."""
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
        """So many private steps of a rule, one release each."""
        with self.private_run(rule, steps) as run:
            for _ in run:
                pass


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """A federated algorithm with its hyperparameters.

    A subclass writes `train`, and where more than the parameters is kept, `start` and `aggregate`.

    Attributes:
        lr: Learning rate of the local steps.
        schedule: "constant", or "cosine" for a rate that falls to 0 over the rounds.
        queries: How many releases a local step makes on its batch.
        sends: Which records of the state clients need.
        uploads: Which records an update has.
        averages: Which of them the server averages over the clients that answered, into its state.
        non_negative: Which records have no values below 0: second moments.
        clients_remember: Whether clients keep something from round to round.
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
        """The local learning rate of a round."""
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * round.number / round.total)) / 2
        return self.lr

    def direction(self, updates: Sequence[Records], expected: float, round: Round) -> Arrays:
        """The mean of the clients' steps as a gradient: -sum of increments / (S K eta)."""
        length = expected * round.local_steps * self.rate(round)
        return divided_sum([update["increment"] for update in updates], -length)

    def start(self, model: nn.Module) -> Records:
        """The state before the first round, from a model with its initial parameters."""
        return {"parameters": copied(dict(trainable_parameters(model)))}

    def broadcast(self, state: Records) -> Records:
        """The part of the state that clients get."""
        return {name: state[name] for name in self.sends}

    @abstractmethod
    def train(self, client: Client, received: Records, round: Round) -> Records:
        """A client's round: trains its model from what it received, and returns its update."""

    def aggregate(
        self, state: Records, updates: Sequence[Records], *, expected: float, clients: int, round: Round
    ) -> Records:
        """The state of the next round.

        Args:
            state: The state of this round.
            updates: Those that came, in the order of the clients.
            expected: How many were expected: what sums are divided by, however many came.
            clients: How many there are in all.
            round: This round.
        """
        increment = divided_sum([update["increment"] for update in updates], expected)
        averaged = {name: divided_sum([one[name] for one in updates], len(updates)) for name in self.averages}
        return state | {"parameters": sums(state["parameters"], increment)} | averaged


def copied(arrays: Arrays) -> Arrays:
    """Independent tensors of the same values."""
    return {name: value.detach().clone() for name, value in arrays.items()}


def zeros_like(arrays: Arrays) -> Arrays:
    """Zeros in the same shapes."""
    return {name: torch.zeros_like(value) for name, value in arrays.items()}


def moments_like(arrays: Arrays) -> Arrays:
    """Zeros in the same shapes, in the type in which rules keep moments."""
    return {
        name: torch.zeros_like(value, dtype=accumulation_dtype(value.dtype)) for name, value in arrays.items()
    }


def sums(left: Arrays, right: Arrays) -> Arrays:
    """`left + right`, tensor by tensor."""
    return {name: value + right[name] for name, value in left.items()}


def differences(left: Arrays, right: Arrays) -> Arrays:
    """`left - right`, tensor by tensor, outside of any graph."""
    return {name: (value.detach() - right[name]) for name, value in left.items()}


def divided_sum(parts: Sequence[Arrays], divisor: float) -> Arrays:
    """The sum of several groups over a divisor, in float64 and in their order."""
    return {
        name: (torch.stack([part[name].double() for part in parts]).sum(0) / divisor).to(value.dtype)
        for name, value in parts[0].items()
    }


def by_parameter(client: Client, arrays: Arrays) -> dict[Tensor, Tensor]:
    """Values by parameter instead of by its name, for a rule."""
    return {p: arrays[name] for name, p in client.parameters.items()}
