"""DP-LocalAdamW: AdamW on each client with moments that start at 0 in every round, and averaging."""

from dataclasses import dataclass

from adamas import _validate, rules
from adamas.federated.algorithm import Client, Round
from adamas.federated.fedavg import FedAvg
from adamas.rules.base import Rule


@dataclass(frozen=True, kw_only=True)
class LocalAdamW(FedAvg):
    """Local DP-AdamW, and the average of the increments.

    Attributes:
        betas: Decays of the moments.
        eps: For stability.
    """

    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.decays(betas=self.betas)
        _validate.non_negative(eps=self.eps)

    def rule(self, client: Client, round: Round) -> Rule:
        """See `FedAvg.rule`."""
        return rules.AdamW(
            client.parameters.values(),
            lr=self.rate(round),
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
        )
