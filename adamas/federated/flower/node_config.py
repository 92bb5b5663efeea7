"""The configuration of a node: the limits that its owner sets. A server cannot exceed them.

partition-id          number of the client: 0, 1, ...
ledger                file that keeps the cost of the node's records, over all runs and restarts
max-epsilon           budget of the records, at `delta`; the node refuses rounds that would exceed it
delta                 the delta of `max-epsilon`
accountant            accountant of the node, whatever the server uses; default: pld
min-noise-multiplier  least noise multiplier of a release; default: 0.02
min-clip-norm         least clipping norm of an example's gradient; default: 1e-6
max-clip-norm         largest clipping norm of an example's gradient; default: 1e6
max-local-steps       most steps of a round; default: 10000
max-batch-size        largest expected batch size; default: the number of examples of the node
task                  Python module that the node trains; it imports no other module that a server names
allow-seed            true accepts a run with a seed, with which the server knows the noise
trust-server          true leaves privacy to the server: accepts updates without noise (`unit = "client"`,
noise
                      multiplier 0), a seed, and any module as the task
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dp_accounting

from adamas import _validate
from adamas._validate import LARGEST_NOISE_MULTIPLIER, LEAST_NOISE_MULTIPLIER
from adamas._words import rounded_up
from adamas.accounting.ledger import ACCOUNTANTS, Ledger
from adamas.federated.checks import check_number, check_whole
from adamas.federated.settings import FederatedSettings

_LIMITS = (
    "accountant",
    "min-noise-multiplier",
    "min-clip-norm",
    "max-clip-norm",
    "max-local-steps",
    "max-batch-size",
    "task",
    "allow-seed",
    "trust-server",
)
_NAMES = ("partition-id", "num-partitions", "ledger", "max-epsilon", "delta", *_LIMITS)


class RefusedError(RuntimeError):
    """A node refuses a request of the server."""


@dataclass(frozen=True)
class NodeConfig:
    """The configuration of a node.

    Attributes:
        number: Number of the client.
        ledger: File of the node's costs; None keeps them in Flower's state, for this run.
        max_epsilon: Budget of the node's records; None for no limit.
        delta: The delta of `max_epsilon`.
        accountant: Accountant of the budget.
        min_noise_multiplier: Least noise multiplier of a release.
        min_clip_norm: Least clipping norm of an example's gradient.
        max_clip_norm: Largest clipping norm of an example's gradient.
        max_local_steps: Most steps of a round.
        max_batch_size: Largest expected batch size; None for the number of examples.
        task: Module that the node trains.
        allow_seed: Whether a run may have a seed.
        trust_server: Whether updates may leave without noise.
    """

    number: int
    ledger: Path | None = None
    max_epsilon: float | None = None
    delta: float | None = None
    accountant: str = "pld"
    min_noise_multiplier: float = LEAST_NOISE_MULTIPLIER
    min_clip_norm: float = 1e-6
    max_clip_norm: float = 1e6
    max_local_steps: int = 10_000
    max_batch_size: int | None = None
    task: str | None = None
    allow_seed: bool = False
    trust_server: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "NodeConfig":
        """Reads and checks Flower's configuration of a node.

        Example:
            >>> NodeConfig.of({"partition-id": 1, "ledger": "/var/lib/adamas/ledger.json"}).number
            1
        """
        for name in config:
            if name not in _NAMES:
                raise ValueError(
                    f"Expected a node's configuration to have {', '.join(_NAMES)}, got {name!r}."
                )
        if "partition-id" not in config:
            raise ValueError("Expected a node's configuration with partition-id, the number of its client.")
        if "max-epsilon" in config:
            for name in ("delta", "ledger"):
                if name not in config:
                    raise ValueError(
                        f"Expected a node with max-epsilon to have {name} too: without it the budget means "
                        "nothing. See docs/federated.md."
                    )
            _validate.positive(**{"max-epsilon": config["max-epsilon"]})
            _validate.probability(delta=config["delta"])
        for name in ("allow-seed", "trust-server"):
            if not isinstance(config.get(name, False), bool):
                raise ValueError(f"Expected {name} to be true or false, got {config[name]!r}.")
        if config.get("trust-server") and "ledger" in config:
            raise ValueError(
                "Expected a node with either ledger or trust-server=true: a ledger of costs is wrong where "
                "updates leave without noise."
            )
        _validate.one_of(ACCOUNTANTS, accountant=config.get("accountant", cls.accountant))
        _validate.count(**{"max-local-steps": config.get("max-local-steps", cls.max_local_steps)})
        if "max-batch-size" in config:
            _validate.count(**{"max-batch-size": config["max-batch-size"]})
        check_number(
            "min-noise-multiplier",
            config.get("min-noise-multiplier", cls.min_noise_multiplier),
            least=LEAST_NOISE_MULTIPLIER,
        )
        for name, value in (("min-clip-norm", cls.min_clip_norm), ("max-clip-norm", cls.max_clip_norm)):
            # Within these bounds neither clipped gradients nor noise underflow or overflow in float32.
            check_number(name, config.get(name, value), least=cls.min_clip_norm, most=cls.max_clip_norm)
        given = {name.replace("-", "_"): config[name] for name in _LIMITS if name in config}
        return cls(
            number=check_whole("partition-id", config["partition-id"]),
            ledger=Path(str(config["ledger"])).resolve() if "ledger" in config else None,
            max_epsilon=float(config["max-epsilon"]) if "max-epsilon" in config else None,
            delta=float(config["delta"]) if "delta" in config else None,
            **given,
        )

    def check(self, settings: FederatedSettings) -> None:
        """Raises RefusedError unless the node may take part in a training."""
        if self.number >= settings.clients:
            raise RefusedError(
                f"Expected partition-id={self.number} below the number of clients={settings.clients}."
            )
        if settings.local_steps > self.max_local_steps:
            raise RefusedError(
                f"The run has local_steps={settings.local_steps}, and the node "
                f"max-local-steps={self.max_local_steps}."
            )
        if self.max_batch_size is not None and settings.batch_size > self.max_batch_size:
            raise RefusedError(
                f"The run has batch_size={settings.batch_size}, and the node "
                f"max-batch-size={self.max_batch_size}."
            )
        if not self.min_clip_norm <= settings.clip_norm <= self.max_clip_norm:
            raise RefusedError(
                f"The run has clip_norm={settings.clip_norm:g}, and the node min-clip-norm="
                f"{self.min_clip_norm:g} and max-clip-norm={self.max_clip_norm:g}."
            )
        if settings.noise_multiplier is not None:
            self.check_noise(settings.noise_multiplier)
        if self.trust_server:
            return
        if settings.unit == "client":
            raise RefusedError(
                "unit='client' sends updates without noise to the server. Give the node trust-server=true, "
                "and no ledger, if the server is trusted."
            )
        if settings.seed is not None and not self.allow_seed:
            raise RefusedError(
                "The run has a seed, so that the server knows the noise. Run without seed, or give the node "
                "allow-seed=true."
            )
        if (settings.task or None) != self.task:
            raise RefusedError(
                f"The run has task={settings.task!r}, and the node task={self.task!r}. Give the node the "
                "module as its task, if it may be imported and trained."
            )

    def check_noise(self, noise_multiplier: float) -> None:
        """Raises RefusedError unless a release may have this noise multiplier."""
        if noise_multiplier == 0 and self.trust_server:
            return
        if not self.min_noise_multiplier <= noise_multiplier <= LARGEST_NOISE_MULTIPLIER:
            raise RefusedError(
                f"The run has noise_multiplier={noise_multiplier:g}, and the node "
                f"min-noise-multiplier={self.min_noise_multiplier:g}."
            )

    def check_budget(self, ledger: Ledger, event: dp_accounting.PoissonSampledDpEvent) -> None:
        """Raises RefusedError unless a ledger is within the budget.

        Args:
            ledger: The ledger, with the requested round.
            event: A step of that round.
        """
        if self.max_epsilon is None:
            return
        assert self.delta is not None
        # A step that alone exceeds the budget needs no accountant, whose work grows as noise falls.
        if least_delta(event, self.max_epsilon) > self.delta:
            raise RefusedError(
                f"One step of this round would cost more than max-epsilon={rounded_up(self.max_epsilon)} at "
                f"delta={self.delta:g}."
            )
        cost = ledger.epsilon(self.delta, self.accountant)
        if not cost <= self.max_epsilon:
            raise RefusedError(
                f"This round would bring epsilon to {rounded_up(cost)} at delta={self.delta:g}, and the node "
                f"has max-epsilon={rounded_up(self.max_epsilon)}."
            )


def least_delta(event: dp_accounting.PoissonSampledDpEvent, epsilon: float) -> float:
    r"""Computes the delta of one sampled Gaussian, for a removed example, in closed form.

    .. math:: \delta = q\,\bar\Phi\Big(\frac{x-1}{z}\Big) - (e^\epsilon - 1 + q)\,\bar\Phi\Big(\frac xz\Big),
              \qquad x = z^2 \log\frac{e^\epsilon - 1 + q}{q} + \frac12

    Example:
        >>> step = dp_accounting.PoissonSampledDpEvent(0.25, dp_accounting.GaussianDpEvent(0.02))
        >>> round(least_delta(step, 1.0), 6)
        0.25
    """
    q, z = float(event.sampling_probability), float(event.event.noise_multiplier)
    if epsilon > 700:  # exp overflows, and no budget is that large
        return 0.0
    rest = math.expm1(epsilon) + q
    x = z * z * math.log(rest / q) + 0.5
    return q * _above((x - 1) / z) - rest * _above(x / z)


def _above(value: float) -> float:
    return math.erfc(value / math.sqrt(2)) / 2
