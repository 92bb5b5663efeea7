"""The server of a federated training: chooses clients, checks and combines their answers, counts the cost."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from adamas import _validate
from adamas._streams import Seed
from adamas.accounting.ledger import Ledger
from adamas.engines import Stacked, trainable_parameters
from adamas.federated.accounting import Plan
from adamas.federated.algorithm import Algorithm, Round
from adamas.federated.arrays import Arrays, Records
from adamas.federated.checks import LARGEST, check_arrays, check_names
from adamas.federated.preconditions import check_algorithm, check_rates, check_sizes
from adamas.geometry import Geometry
from adamas.noise import GaussianNoise
from adamas.privatize import privatize
from adamas.sampling import Poisson

_LOG = logging.getLogger("adamas.federated")


@dataclass(frozen=True)
class RoundReport:
    """The outcome of a round. It names who took part, so for the unit "client" only the server may see it.

    Attributes:
        number: 0, 1, ...
        answered: Clients whose update was used.
        left_out: Client -> why its update was not used.
    """

    number: int
    answered: tuple[int, ...]
    left_out: Mapping[int, str]


class NoAnswerError(RuntimeError):
    """No client that was asked sent a usable update.

    Args:
        message: The text of the error.
        report: The outcome of the round.
    """

    def __init__(self, message: str, report: RoundReport) -> None:
        super().__init__(message)
        self.report = report


class Server:
    """A federated training, round by round: `open_round`, then `close_round` with the answers.

    Args:
        algorithm: The algorithm that clients and server run.
        model: The architecture with its initial parameters. After each round it holds the new ones.
        sizes: Number of examples of each client, which is public; 0 for an absent client, which takes no
            part.
        plan: The quantities that the guarantee depends on. For the unit "record" its sampling rate must be
            that of the client with the fewest examples.
        batch_size: Expected number of examples of a local step.
        participation: Share of the clients in a round: a fixed number, drawn at random; for the unit
            "client", each client is drawn independently.
        noise_multiplier: Noise multiplier of the clients' releases; for the unit "client", of the server's.
        clip_norm: Norm to which the server clips whole updates, for the unit "client".
        seed: Seed of the choice of clients and of the server's noise; None draws a secret one.

    Attributes:
        state: The algorithm's state.
        present: The clients that are present.
        round: The round that is next, or open.
        lost: Number of rounds without a usable update.
        asked: Number of rounds that each client was asked to take part in, for which its records are
            charged. Not counted if the choice is secret.
        secret: Whether it must stay private who takes part: for the unit "client", and if the plan counts on
            participation.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: nn.Module,
        *,
        sizes: Sequence[int],
        plan: Plan,
        batch_size: int,
        participation: float,
        noise_multiplier: float,
        clip_norm: float = 1.0,
        seed: int | None = None,
    ) -> None:
        _validate.rate(participation=participation)
        _validate.count(batch_size=batch_size)
        _validate.noise_multiplier(noise_multiplier=noise_multiplier)
        _validate.positive(clip_norm=clip_norm)
        present = [client for client, size in enumerate(sizes) if size]
        check_sizes(plan, sizes, batch_size)
        check_algorithm(plan, algorithm, seed)
        expected = max(1, round(participation * len(present)))
        fewest = min(sizes[client] for client in present)
        check_rates(plan, fewest=fewest, batch_size=batch_size, expected=expected, clients=len(present))
        self.algorithm, self.model, self.plan = algorithm, model, plan
        self.sizes, self.batch_size = tuple(sizes), batch_size
        self.noise_multiplier, self.clip_norm = noise_multiplier, clip_norm
        self.expected, self.present = expected, present
        self.state = algorithm.start(model)
        self.round = self.lost = 0
        self.secret = plan.unit == "client" or plan.participation is not None
        self.asked = [0] * len(sizes)
        self.ledger = Ledger()
        self._seed = Seed(seed)
        self._noise = GaussianNoise(self._seed)
        self._sampler = Poisson(len(present), self.expected, self._seed)
        self._open: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return self.plan.rounds - self.round

    @property
    def now(self) -> Round:
        """The round that is next, or open."""
        return Round(self.round, self.plan.rounds, self.plan.local_steps, self.lost)

    def open_round(self) -> tuple[tuple[int, ...], Records]:
        """Opens the next round: returns its clients and what they receive, and charges the clients for it."""
        if self._open is not None:
            raise RuntimeError(
                f"Expected close_round before the next open_round: round {self.round} is open."
            )
        if not len(self):
            raise RuntimeError(f"All {self.plan.rounds} rounds are finished.")
        if self.plan.unit == "client":
            chosen = self._sampler.indices(self.round).indices.tolist()
        else:
            order = self._seed.generator("participants", self.round).permutation(len(self.present))
            chosen = sorted(order[: self.expected].tolist())
        self._open = tuple(self.present[place] for place in chosen)
        if not self.secret:
            for client in self._open:
                self.asked[client] += 1
        return self._open, self.algorithm.broadcast(self.state)

    def close_round(self, answers: Mapping[int, Records | str]) -> RoundReport:
        """Combines the answers of a round into the next state.

        Args:
            answers: Client -> its update, or why there is none. A client without an entry did not answer.

        Raises:
            NoAnswerError: If no answer is usable, for the unit "record". The state stays, the round is lost,
                and the next one may be opened.
        """
        if self._open is None:
            raise RuntimeError("Expected open_round before close_round.")
        unknown = sorted(answers.keys() - set(self._open))
        if unknown:
            raise ValueError(f"Expected answers of the clients that were asked, got some of {unknown}.")
        asked, self._open = self._open, None
        updates: dict[int, Records] = {}
        left_out: dict[int, str] = {}
        for client in asked:
            answer = answers.get(client, "no answer")
            reason = answer if isinstance(answer, str) else self._reason_against(answer)
            if reason:
                left_out[client] = reason
            elif not isinstance(answer, str):
                updates[client] = answer
        now = self.now
        self.round += 1
        # For the unit "client" a round without updates is released as noise: to report that it had none
        # would tell who was asked.
        used = bool(updates) or self.plan.unit == "client"
        state = self._next_state(updates, left_out, now) if used else None
        absent = {client: "did not come up" for client, size in enumerate(self.sizes) if not size}
        report = RoundReport(now.number, tuple(updates), dict(sorted((absent | left_out).items())))
        if not self.secret:  # else it is private who took part
            for client, reason in left_out.items():
                _LOG.warning("Client %d is left out of round %d: %s", client, now.number, reason)
        if state is None:
            self.lost += 1
            reasons = "; ".join(f"client {client}: {reason}" for client, reason in left_out.items())
            raise NoAnswerError(
                f"Round {report.number} has no update that can be used. "
                + ("" if self.secret else f"{reasons}. ")
                + "The clients' logs say more.",
                report,
            )
        self.state = state
        self.load_parameters()
        return report

    def load_parameters(self) -> None:
        """Copies the parameters of the state into the model."""
        with torch.no_grad():
            for name, p in trainable_parameters(self.model).items():
                p.copy_(self.state["parameters"][name])

    def epsilons(self) -> list[float]:
        """Computes the epsilon spent so far, for each client's records or for each client."""
        if self.secret:
            return [self.epsilon()] * len(self.sizes)
        keys = list(zip(self.sizes, self.asked, strict=True))
        spent = {key: self._client_epsilon(*key) for key in dict.fromkeys(keys)}
        return [spent[key] for key in keys]

    def epsilon(self) -> float:
        """Computes the largest of `epsilons()`: the guarantee of the training so far."""
        if self.plan.unit == "client":
            return self.ledger.epsilon(self.plan.delta, self.plan.accountant) if self.ledger.entries else 0.0
        opened = self.round + (self._open is not None)
        if self.secret:
            return replace(self.plan, rounds=opened).epsilon(self.noise_multiplier) if opened else 0.0
        # Fewer examples and more rounds cost more, so only few clients can be the worst.
        worst, fewest = 0.0, max(self.sizes) + 1
        for rounds, size in sorted(
            {(-asked, size) for size, asked in zip(self.sizes, self.asked, strict=True) if asked}
        ):
            if size < fewest:
                fewest = size
                worst = max(worst, self._client_epsilon(size, -rounds))
        return worst

    def state_dict(self) -> dict[str, Any]:
        """Returns what a restarted server needs to continue. An open round counts as lost there."""
        opened = self._open is not None
        return {
            "round": self.round + opened,
            "lost": self.lost + opened,
            "asked": list(self.asked),
            "sizes": list(self.sizes),
            "noise_multiplier": self.noise_multiplier,
            "state": self.state,
            "ledger": self.ledger.state_dict(),
            "noise": self._noise.state_dict(),
            "seed": self._seed.given,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continues from a saved state, in a server with the same settings that has not opened a round."""
        if self.round or any(self.asked):
            raise RuntimeError("Expected a server that has not opened a round.")
        if saved["seed"] != self._seed.given:
            raise ValueError(f"Expected a state with seed={self._seed.given}, got {saved['seed']}.")
        for name, mine in (("sizes", list(self.sizes)), ("noise_multiplier", self.noise_multiplier)):
            if saved[name] != mine:
                raise ValueError(
                    f"Expected a state with {name}={mine}, got {saved[name]}: what was released before would "
                    "be charged wrongly. Go on with the clients as they were, or start again."
                )
        for name, arrays in self.state.items():
            check_arrays(name, saved["state"][name], arrays)
        self.round, self.lost, self.asked = saved["round"], saved["lost"], list(saved["asked"])
        self.state = {name: dict(arrays) for name, arrays in saved["state"].items()}
        self.ledger.load_state_dict(saved["ledger"])
        self._noise.load_state_dict(saved["noise"])
        self.load_parameters()

    def _client_epsilon(self, size: int, rounds: int) -> float:
        if not rounds:
            return 0.0
        if self.noise_multiplier == 0:
            return float("inf")
        plan = self.plan.with_rate(self.batch_size / size)
        return plan.epsilon(self.noise_multiplier, rounds=rounds)

    def _next_state(
        self, updates: dict[int, Records], left_out: dict[int, str], now: Round
    ) -> Records | None:
        """Computes the next state, without updates that would make it overflow; None if none is left."""
        given, expected = list(updates.values()), float(self.expected)
        if self.plan.unit == "client":
            given, expected = [{"increment": self._private_mean(given, now.number)}], 1.0
        while given:
            state = self.algorithm.aggregate(
                self.state, given, expected=expected, clients=len(self.present), round=now
            )
            reason = _reason_against_state(state, self.state)
            if not reason:
                return state
            if self.plan.unit == "client":  # its updates are clipped
                raise RuntimeError(f"The next state cannot be used. {reason}")
            largest = max(updates, key=lambda client: _largest(updates[client]))
            left_out[largest] = f"its update is the largest of those that cannot be added up. {reason}"
            del updates[largest]
            given = list(updates.values())
        return None

    def _private_mean(self, updates: list[Records], number: int) -> Arrays:
        """Releases the noisy sum of clipped increments, divided by the expected number of clients."""
        params: Arrays = dict(trainable_parameters(self.model))
        engines = []
        if updates:
            stacked = {p: torch.stack([u["increment"][name] for u in updates]) for name, p in params.items()}
            engines.append((Stacked(stacked), 0))
        release = privatize(
            engines,
            Geometry.ball(params.values(), self.clip_norm),
            noise_multiplier=self.noise_multiplier,
            expected_batch_size=self.expected,
            noise=self._noise,
            charge=lambda _: self._charged(number),
        )
        return {name: release.mean[p] for name, p in params.items()}

    def _charged(self, number: int) -> tuple[int, ...]:
        """Records the release of a round. Its noise needs no key: a round is never released twice."""
        self.ledger.record_release(self._sampler, number, self.noise_multiplier)
        return ()

    def _reason_against(self, update: object) -> str:
        """Says why an update is not usable; empty if it is."""
        expected = {"increment": self.state["parameters"]} | {
            name: self.state[name] for name in self.algorithm.uploads if name != "increment"
        }
        try:
            for name, arrays in check_names("records", update, expected).items():
                non_negative = name in self.algorithm.non_negative
                check_arrays(name, arrays, expected[name], non_negative=non_negative, most=LARGEST)
        except ValueError as error:
            return str(error)
        return ""


def _reason_against_state(state: Records, before: Records) -> str:
    """Says why a state cannot follow another one; empty if it can."""
    try:
        for name, arrays in state.items():
            check_arrays(name, arrays, before[name])
    except ValueError as error:
        return str(error)
    return ""


def _largest(update: Records) -> float:
    values = [value for arrays in update.values() for value in arrays.values() if value.numel()]
    return max((float(value.abs().max()) for value in values), default=0.0)
