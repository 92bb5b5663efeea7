r"""DP-FedLADA, after FedLADA (Sun et al., 2023): local Adam, amended by the direction of all clients.

.. math::
    m_i^k          &= \beta_1 m_i^{k-1} + (1-\beta_1)\tilde g_i^k                            \qquad (1) \\
    v_i^k          &= \beta_2 v_i^{k-1} + (1-\beta_2)(\tilde g_i^k)^2                        \qquad (2) \\
    \theta_i^k     &= \theta_i^{k-1} - \eta_t\Big((1-\gamma)\frac{m_i^k}{\sqrt{v_i^k}+\epsilon}
                      + \gamma\Delta_G\Big)                                                  \qquad (3) \\
    \bar v         &\leftarrow \text{average of } v_i^K \text{ over the clients that answered}  \qquad (4) \\
    \Delta_G       &\leftarrow -\frac{1}{S K \eta_t} \sum_i (\theta_i^K - \theta^t)           \qquad (5)

A round starts at :math:`m_i^0 = 0` and :math:`v_i^0 = \bar v`. Neither moment is corrected for its start.
Every coordinate of v is sent, which doubles an upload. Parameters are averaged by (2) of
`adamas.federated.fedavg`.

Y. Sun, L. Shen, H. Sun, L. Ding and D. Tao, "Efficient Federated Learning via Local Adaptive Amended
Optimizer with Linear Speedup", IEEE TPAMI, 2023, arXiv:2308.00522.

Differs from the paper: gradients are private, and (3) divides by the second moment itself, with epsilon, as
the DP-FedLADA that DP-FedAdamW (arXiv:2602.19945) compares with. The paper divides by its running maximum
(AMSGrad) without epsilon: under noise, a maximum never comes down again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from adamas import _validate
from adamas.federated.algorithm import Round
from adamas.federated.arrays import Records, zeros_like
from adamas.federated.averaged_moments import AveragedMoments, start_moments
from adamas.federated.client import Client, by_parameter
from adamas.geometry import Value
from adamas.rules.base import Options, Params, Rule, State


@dataclass(frozen=True, kw_only=True)
class FedLADA(AveragedMoments):
    """Local Adam with averaged second moments and an amended direction.

    Attributes:
        betas: Decays of the moments.
        eps: epsilon, added to the root.
        alignment: gamma, the weight of the direction of all clients.
    """

    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    alignment: float = 0.9

    sends: ClassVar[tuple[str, ...]] = ("parameters", "second-moments", "direction")
    uploads: ClassVar[tuple[str, ...]] = ("increment", "second-moments")
    averages: ClassVar[tuple[str, ...]] = ("second-moments",)  # (4)

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.decays(betas=self.betas)
        _validate.positive(eps=self.eps)
        _validate.decay(alignment=self.alignment)

    def start(self, model: nn.Module) -> Records:
        """See `Algorithm.start`."""
        state = super().start(model)
        return state | {"direction": zeros_like(state["parameters"])}

    def rule(self, client: Client, received: Records, round: Round) -> "AmendedAdam":
        """See `AveragedMoments.rule`."""
        return AmendedAdam(
            client.parameters.values(),
            lr=self.rate(round),
            betas=self.betas,
            eps=self.eps,
            alignment=self.alignment,
            second_moments=by_parameter(client, received["second-moments"]),
            direction=by_parameter(client, received["direction"]),
        )

    def aggregate(
        self, state: Records, updates: Sequence[Records], *, expected: float, clients: int, round: Round
    ) -> Records:
        """See `Algorithm.aggregate`."""
        result = super().aggregate(state, updates, expected=expected, clients=clients, round=round)
        return result | {"direction": self.direction(updates, expected, round)}  # (5)


class AmendedAdam(Rule):
    """Adam with a given initial second moment, mixed with a given direction.

    Args:
        params: Parameters.
        lr: Learning rate.
        betas: Decays of the moments.
        eps: epsilon, added to the root.
        alignment: gamma, the weight of the given direction.
        second_moments: Initial second moment.
        direction: The given direction, a gradient.
    """

    def __init__(
        self,
        params: Params,
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        alignment: float,
        second_moments: dict[Tensor, Tensor],
        direction: dict[Tensor, Tensor],
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "alignment": alignment})
        self._direction = direction
        start_moments(self, second=second_moments)

    def _update(
        self, p: Tensor, gradient: Tensor, noise_variance: Value, group: Options, state: State
    ) -> None:
        b1, b2 = group["betas"]
        g = gradient.to(state["m"].dtype)
        state["m"].lerp_(g, 1 - b1)  # (1)
        state["v"].mul_(b2).addcmul_(g, g, value=1 - b2)  # (2)
        own = state["m"] / (state["v"].sqrt() + group["eps"])
        step = own.lerp_(self._direction[p].to(own.dtype), group["alignment"])
        p.add_(step, alpha=-group["lr"])  # (3)
