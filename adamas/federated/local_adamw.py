r"""DP-LocalAdamW: AdamW on each client, with moments that start at 0 in every round.

.. math::
    m^k            &= \beta_1 m^{k-1} + (1-\beta_1)\tilde g_i^k, \quad
    \hat m^k        = m^k/(1-\beta_1^k)                                                  \qquad (1) \\
    v^k            &= \beta_2 v^{k-1} + (1-\beta_2)(\tilde g_i^k)^2, \quad
    \hat v^k        = v^k/(1-\beta_2^k)                                                  \qquad (2) \\
    \theta_i^k     &= (1-\eta\lambda)\theta_i^{k-1} - \eta\,\hat m^k/(\sqrt{\hat v^k}+\epsilon)  \qquad (3)

k counts the steps of the round, from 1. The server averages increments: (2) of `adamas.federated.fedavg`.

The baseline of this name in J. Liu, Y. Miao, N. Xi and J. Liu, "DP-FedAdamW: An Efficient Optimizer for
Differentially Private Federated Large Models", CVPR 2026, arXiv:2602.19945. AdamW is I. Loshchilov and
F. Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, arXiv:1711.05101.
"""

from dataclasses import dataclass

from adamas import _validate, rules
from adamas.federated.algorithm import Round
from adamas.federated.client import Client
from adamas.federated.fedavg import FedAvg
from adamas.rules.base import Rule


@dataclass(frozen=True, kw_only=True)
class LocalAdamW(FedAvg):
    """Local DP-AdamW; the server averages increments.

    Attributes:
        betas: Decays of the moments.
        eps: epsilon, added to the root.
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
        return rules.AdamW(  # (1) to (3), from a fresh state
            client.parameters.values(),
            lr=self.rate(round),
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
        )
