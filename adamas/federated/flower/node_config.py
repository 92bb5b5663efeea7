"""What the owner of a node allows.

partition-id    the number of the client: 0, 1, ...
ledger          a file that keeps what the node's records have cost, over all runs and restarts
max-epsilon     the most that they may cost, at `delta`; beyond it the node refuses, whatever the server asks
delta           of `max-epsilon`
allow-seed      true accepts a run with a seed, whose noise the server knows
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adamas import _validate
from adamas.federated.settings import FederatedSettings

_NAMES = ("partition-id", "num-partitions", "ledger", "max-epsilon", "delta", "allow-seed")


class RefusedError(RuntimeError):
    """The configuration of a node does not allow what the server asks."""


@dataclass(frozen=True)
class NodeConfig:
    """The configuration of a node.

    Attributes:
        number: Of the client.
        ledger: The file of its costs; None keeps them in Flower's state, for this run.
        max_epsilon: The most that its records may cost.
        delta: Of `max_epsilon`.
        allow_seed: Whether a run may have a seed, if the node keeps a ledger.
    """

    number: int
    ledger: Path | None = None
    max_epsilon: float | None = None
    delta: float | None = None
    allow_seed: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "NodeConfig":
        """Reads and checks what Flower has.

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
            _validate.positive(**{"max-epsilon": float(config["max-epsilon"])})
            _validate.probability(delta=float(config["delta"]))
        return cls(
            number=int(config["partition-id"]),
            ledger=Path(str(config["ledger"])) if "ledger" in config else None,
            max_epsilon=float(config["max-epsilon"]) if "max-epsilon" in config else None,
            delta=float(config["delta"]) if "delta" in config else None,
            allow_seed=config.get("allow-seed") is True,
        )

    def check(self, settings: FederatedSettings) -> None:
        """Raises unless the node may take part in a training."""
        if not 0 <= self.number < settings.clients:
            raise ValueError(
                f"Expected partition-id={self.number} below the number of clients={settings.clients}."
            )
        if self.ledger is None:
            return
        if settings.unit == "client":
            raise RefusedError(
                "unit='client' sends updates without noise to the server, and this node has a ledger of what "
                "its records cost. Remove ledger from its configuration if the server is trusted."
            )
        if settings.seed is not None and not self.allow_seed:
            raise RefusedError(
                "The run has a seed, so that the server knows the noise, and this node has a ledger of what "
                "its records cost. Run without seed, or give the node allow-seed=true."
            )
