r"""DP-FedOpt: FedAdam, FedYogi and FedAdagrad (Reddi et al., 2021) on private increments.

.. math::
    \Delta  &= \frac1S \sum_i (\theta_i^K - \theta^t)                              \qquad (1) \\
    M^+     &= \beta_1 M + (1-\beta_1)\Delta                                       \qquad (2) \\
    V^+     &= \beta_2 V + (1-\beta_2)\Delta^2 \quad\text{(Adam)}                   \qquad (3) \\
    V^+     &= V - (1-\beta_2)\Delta^2\,\mathrm{sign}(V - \Delta^2) \quad\text{(Yogi)}  \qquad (4) \\
    V^+     &= V + \Delta^2 \quad\text{(Adagrad)}                                  \qquad (5) \\
    \theta^{t+1} &= \theta^t + \eta_s M^+ / (\sqrt{V^+} + \tau)                     \qquad (6)

M starts at 0 and V at :math:`\tau^2`; neither is corrected for its start. Local steps are (1) of
`adamas.federated.fedavg`. S is the expected number of clients of a round, and the sum runs over the clients
that answered.

S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar and H. B. McMahan, "Adaptive
Federated Optimization", ICLR 2021, arXiv:2003.00295.

Differs from the paper, which is not private: local gradients, or the sum in (1), are private.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adamas import _validate
from adamas.federated.algorithm import Round
from adamas.federated.arrays import Records, divided_sum, zeros_like
from adamas.federated.fedavg import FedAvg

_SECOND_MOMENTS = ("adam", "yogi", "adagrad")


@dataclass(frozen=True, kw_only=True)
class FedOpt(FedAvg):
    """Local DP-SGD; the server makes an adaptive step along the average increment.

    Attributes:
        server_lr: eta_s.
        server_betas: beta_1 and beta_2, decays of the server's moments.
        tau: Added to the root. V starts at its square.
        second_moment: "adam", "yogi" or "adagrad".
    """

    server_lr: float = 0.01
    server_betas: tuple[float, float] = (0.9, 0.99)
    tau: float = 1e-3
    second_moment: str = "adam"

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive(server_lr=self.server_lr, tau=self.tau)
        _validate.decays(server_betas=self.server_betas)
        _validate.one_of(_SECOND_MOMENTS, second_moment=self.second_moment)

    def start(self, model: nn.Module) -> Records:
        """See `Algorithm.start`."""
        state = super().start(model)
        zeros = zeros_like(state["parameters"])
        squares = {name: torch.full_like(value, self.tau**2) for name, value in zeros.items()}
        return state | {"momentum": zeros, "second-moments": squares}

    def aggregate(
        self, state: Records, updates: Sequence[Records], *, expected: float, clients: int, round: Round
    ) -> Records:
        """See `Algorithm.aggregate`."""
        increment = divided_sum([update["increment"] for update in updates], expected)  # (1)
        result: Records = {"parameters": {}, "momentum": {}, "second-moments": {}}
        for name, delta in increment.items():
            momentum = torch.lerp(state["momentum"][name], delta, 1 - self.server_betas[0])  # (2)
            squares = self._squares(state["second-moments"][name], delta.square())
            result["momentum"][name], result["second-moments"][name] = momentum, squares
            step = momentum / (squares.sqrt() + self.tau)
            result["parameters"][name] = state["parameters"][name] + self.server_lr * step  # (6)
        return result

    def _squares(self, before: Tensor, square: Tensor) -> Tensor:
        share = 1 - self.server_betas[1]
        if self.second_moment == "adagrad":
            return before + square  # (5)
        if self.second_moment == "yogi":
            return before - share * square * torch.sign(before - square)  # (4)
        return torch.lerp(before, square, share)  # (3)
