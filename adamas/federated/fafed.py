r"""DP-FAFED, after FAFED (Wu et al., 2023): adaptive steps with STORM momentum.

.. math::
    m^1            &= \alpha\,\tilde g(\theta^1) + (1-\alpha)\,\bar m                        \qquad (1) \\
    m^k            &= \tilde g(\theta^k) + (1-\alpha)\,(m^{k-1} - \tilde g(\theta^{k-1}))    \qquad (2) \\
    v^k            &= \beta v^{k-1} + (1-\beta)\,\tilde g(\theta^k)^2                        \qquad (3) \\
    \theta^{k+1}   &= \theta^k - \eta\, m^k/(\sqrt{\bar v}+\rho)                             \qquad (4) \\
    \bar m, \bar v &\leftarrow \text{averages of } m^K, v^K \text{ over the clients that answered}  \qquad (5)

k counts the steps of a round, from 1, and :math:`v^0 = \bar v`. Both gradients of (2) are taken on the batch
of step k: two queries. The first step of a round has no earlier point of this client, so that (1) needs one
query. :math:`\bar v` in (4) does not change within a round. Parameters are averaged by (2) of
`adamas.federated.fedavg`.

X. Wu, F. Huang, Z. Hu and H. Huang, "Faster Adaptive Federated Learning", AAAI 2023, arXiv:2212.00974; STORM
is A. Cutkosky and F. Orabona, "Momentum-Based Variance Reduction in Non-Convex SGD", NeurIPS 2019,
arXiv:1905.10018.

Differs from the paper, which has no private form. This one is ours: moments start at 0, not at those of a
first gradient, and each round begins with (1), because its clients may have no earlier point.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from adamas import _validate
from adamas.federated.algorithm import Round
from adamas.federated.arrays import Records
from adamas.federated.averaged_moments import AveragedMoments, start_moments
from adamas.federated.client import Client, by_parameter
from adamas.geometry import Value
from adamas.rules.base import Options, Params, Rule, State


@dataclass(frozen=True, kw_only=True)
class FAFED(AveragedMoments):
    """Local steps with a variance-reduced momentum, over averaged second moments.

    Attributes:
        momentum: alpha, the share of the new gradient; 1 is without momentum.
        beta: Decay of the second moment.
        rho: Added to the root of the second moment, which is 0 in the first round.
    """

    lr: float = 1e-3
    momentum: float = 0.1
    beta: float = 0.99
    rho: float = 0.01

    queries: ClassVar[int] = 2
    sends: ClassVar[tuple[str, ...]] = ("parameters", "momentum", "second-moments")
    uploads: ClassVar[tuple[str, ...]] = ("increment", "momentum", "second-moments")
    averages: ClassVar[tuple[str, ...]] = ("momentum", "second-moments")  # (5)

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.rate(momentum=self.momentum)
        _validate.decay(beta=self.beta)
        _validate.positive(rho=self.rho)

    def rule(self, client: Client, received: Records, round: Round) -> "Storm":
        """See `AveragedMoments.rule`."""
        return Storm(
            client.parameters.values(),
            lr=self.rate(round),
            momentum=self.momentum,
            beta=self.beta,
            rho=self.rho,
            moments=by_parameter(client, received["momentum"]),
            second_moments=by_parameter(client, received["second-moments"]),
        )

    def make_steps(self, client: Client, rule: Rule, steps: int) -> None:
        """See `AveragedMoments.make_steps`. From the second step on, a step has two releases."""
        assert isinstance(rule, Storm)
        before: dict[Tensor, Tensor] = {}
        with client.private_run(rule, steps) as run:
            for batch in run.batches():
                if before:
                    here = {p: p.detach().clone() for p in before}
                    _set(before)
                    rule.earlier = run.privatize(batch).mean
                    _set(here)
                release = run.privatize(batch)
                before = {p: p.detach().clone() for p in release.mean}
                release.write_to(rule)
                rule.step()


class Storm(Rule):
    """Steps along a momentum that is corrected by the change of the gradient between two steps.

    Args:
        params: Parameters.
        lr: Learning rate.
        momentum: alpha, the share of the new gradient.
        beta: Decay of the second moment.
        rho: Added to the root of the second moment.
        moments: Initial momentum.
        second_moments: Initial second moment, whose root divides every step.

    Attributes:
        earlier: The release at the parameters of the previous step, on the batch of the coming step; None
            before the second step.
    """

    def __init__(
        self,
        params: Params,
        *,
        lr: float,
        momentum: float,
        beta: float,
        rho: float,
        moments: dict[Tensor, Tensor],
        second_moments: dict[Tensor, Tensor],
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "beta": beta, "rho": rho})
        self.earlier: Mapping[Tensor, Tensor] | None = None
        start_moments(self, first=moments, second=second_moments)
        self._divisor = {p: state["v"].sqrt() + rho for p, state in self.state.items()}

    def _update(
        self, p: Tensor, gradient: Tensor, noise_variance: Value, group: Options, state: State
    ) -> None:
        g, share = gradient.to(state["m"].dtype), group["momentum"]
        if self.earlier is None:
            state["m"].lerp_(g, share)  # (1)
        else:
            state["m"].sub_(self.earlier[p]).mul_(1 - share).add_(g)  # (2)
        state["v"].mul_(group["beta"]).addcmul_(g, g, value=1 - group["beta"])  # (3)
        p.addcdiv_(state["m"], self._divisor[p], value=-group["lr"])  # (4)


@torch.no_grad()
def _set(values: dict[Tensor, Tensor]) -> None:
    for p, value in values.items():
        p.copy_(value)
