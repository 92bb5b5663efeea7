"""The server's side of a federated training: whom it asks, which answers it takes, and what it costs."""

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
from adamas.errors import UnsupportedError
from adamas.federated.accounting import Plan
from adamas.federated.algorithm import Algorithm, Arrays, Records, Round
from adamas.federated.checks import LARGEST, check_arrays, check_names
from adamas.geometry import Geometry
from adamas.noise import GaussianNoise
from adamas.privatize import privatize
from adamas.sampling import Poisson

_LOG = logging.getLogger("adamas.federated")


@dataclass(frozen=True)
class RoundReport:
    """What became of a round; for the unit "client" for the server's eyes only, since it names who took part.

    Attributes:
        number: 0, 1, ...
        answered: Clients whose update was taken.
        left_out: Client -> why its update was not taken.
    """

    number: int
    answered: tuple[int, ...]
    left_out: Mapping[int, str]


class NoAnswerError(RuntimeError):
    """No client that was asked gave an update that can be used.

    Args:
        message: Says so.
        report: What became of the round.
    """

    def __init__(self, message: str, report: RoundReport) -> None:
        super().__init__(message)
        self.report = report


class Server:
    """A federated training, round by round: `open_round`, then `close_round` with the answers.

    Args:
        algorithm: What clients and server compute.
        model: The architecture with its initial parameters; it gets those of the last round.
        sizes: Number of examples of each client, which is public; 0 for a client that did not come up, and
            takes no part.
        plan: What the privacy depends on. For the unit "record" its sampling rate must be that of the client
            with the fewest examples.
        batch_size: Expected number of examples of a local step.
        participation: Share of the clients that take part in a round: a fixed number of them, drawn at
            random; for the unit "client", each by a coin of its own.
        noise_multiplier: Of the clients' releases, or for the unit "client", of the server's.
        clip_norm: To which the server clips whole updates, for the unit "client".
        seed: Of the choice of clients and the server's noise; None takes a secret one.

    Attributes:
        state: The algorithm's state.
        present: The clients that came up.
        round: The round that is next, or open.
        lost: Rounds of which no update was taken.
        asked: How many rounds each client was asked to take part in, which is what its records are charged
            for. Not counted where the choice is secret.
        secret: Whether it must stay private who takes part: for the unit "client", and where the plan counts
            on participation.
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
        fewest = min((sizes[client] for client in present), default=0)
        if fewest < batch_size:
            raise ValueError(
                f"Expected clients with at least batch_size={batch_size} examples each, got {list(sizes)}. "
                "Lower batch_size, or leave out the clients with fewer."
            )
        people = len(present) if plan.unit == "client" else max(sizes)
        if plan.delta >= 1 / people:
            raise ValueError(
                f"Expected a plan with delta={plan.delta:g} < {1 / people:.3g}, one over the number of "
                f"{'clients' if plan.unit == 'client' else 'examples of the largest client'}: with more, "
                "publishing one of them would count as private. Lower delta."
            )
        if plan.participation is not None and seed is not None:
            raise ValueError(
                "Expected seed=None with a plan that counts on participation: whoever knows the seed knows "
                "who takes part."
            )
        if plan.participation is not None and algorithm.clients_remember:
            raise UnsupportedError(
                "A plan that counts on participation needs rounds that do not depend on who took part "
                f"before, and clients of {type(algorithm).__name__} remember. Use participation=None in the "
                "plan (count_on_participation=False), or another algorithm."
            )
        if plan.unit == "record" and plan.sampling_rate < batch_size / fewest * (1 - 1e-12):
            raise ValueError(
                f"Expected a plan whose sampling_rate={plan.sampling_rate:g} is at least batch_size / the "
                f"fewest examples of a client = {batch_size / fewest:g}."
            )
        if plan.unit == "client" and algorithm.uploads != ("increment",):
            raise UnsupportedError(
                f"unit='client' adds noise to increments alone, and {type(algorithm).__name__} also uploads "
                f"{', '.join(algorithm.uploads[1:])}. Use unit='record', or an algorithm such as dp-fedavg."
            )
        if plan.unit == "record" and plan.queries < algorithm.queries:
            raise ValueError(
                f"Expected a plan with queries={algorithm.queries}, the releases that "
                f"{type(algorithm).__name__} makes on each batch, got queries={plan.queries}."
            )
        expected = max(1, round(participation * len(present)))
        share = plan.sampling_rate if plan.unit == "client" else plan.participation
        if share is not None and share < expected / len(present) * (1 - 1e-12):
            name = "sampling_rate" if plan.unit == "client" else "participation"
            raise ValueError(
                f"Expected a plan whose {name}={share:g} is at least {expected} of {len(present)} clients = "
                f"{expected / len(present):g}, the share that takes part in a round."
            )
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
        """The clients that are asked in this round, and what they get. From here on they are charged."""
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
        """Takes the answers of a round into the state.

        Args:
            answers: Client -> its update, or why there is none. A client without an entry did not answer.

        Raises:
            NoAnswerError: If no answer can be used, for the unit "record". The state is as before, the round
                is lost, and the next one may be opened.
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
        # For the unit "client" a round of nobody is released as noise: that nobody could be used would tell
        # who was asked.
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
        """Gives the model the parameters of the state."""
        with torch.no_grad():
            for name, p in trainable_parameters(self.model).items():
                p.copy_(self.state["parameters"][name])

    def epsilons(self) -> list[float]:
        """The epsilon that each client's records, or each client, have spent so far."""
        if self.secret:
            return [self.epsilon()] * len(self.sizes)
        keys = list(zip(self.sizes, self.asked, strict=True))
        spent = {key: self._client_epsilon(*key) for key in dict.fromkeys(keys)}
        return [spent[key] for key in keys]

    def epsilon(self) -> float:
        """The worst of `epsilons()`: what the training promises to everybody so far."""
        if self.plan.unit == "client":
            return self.ledger.epsilon(self.plan.delta, self.plan.accountant) if self.ledger.entries else 0.0
        opened = self.round + (self._open is not None)
        if self.secret:
            return replace(self.plan, rounds=opened).epsilon(self.noise_multiplier) if opened else 0.0
        # Fewer examples and more rounds cost more, so that few clients can be the worst.
        worst, fewest = 0.0, max(self.sizes) + 1
        for rounds, size in sorted(
            {(-asked, size) for size, asked in zip(self.sizes, self.asked, strict=True) if asked}
        ):
            if size < fewest:
                fewest = size
                worst = max(worst, self._client_epsilon(size, -rounds))
        return worst

    def state_dict(self) -> dict[str, Any]:
        """What a restarted server needs to go on. A round that is open counts as lost there."""
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
        """Goes on from a saved state, in a server with the same settings that has not opened a round."""
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
        """The state after updates, without those that would make it overflow; None if none is left."""
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
        """The sum of clipped increments with noise, over the expected number of clients."""
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
        """Records the release of a round, whose noise needs no key: a round is never made twice."""
        self.ledger.record_release(self._sampler, number, self.noise_multiplier)
        return ()

    def _reason_against(self, update: object) -> str:
        """Why an update cannot be used; empty if it can."""
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
    """Why a state cannot follow another one; empty if it can."""
    try:
        for name, arrays in state.items():
            check_arrays(name, arrays, before[name])
    except ValueError as error:
        return str(error)
    return ""


def _largest(update: Records) -> float:
    values = [value for arrays in update.values() for value in arrays.values() if value.numel()]
    return max((float(value.abs().max()) for value in values), default=0.0)
