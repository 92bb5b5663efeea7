r"""DP-FAFED, after Wu et al. (2023): adaptive steps with STORM momentum.

.. math::
    m^k            &= \tilde g(\theta^k) + (1-\alpha)\,(m^{k-1} - \tilde g(\theta^{k-1})) \\
    v^k            &= \beta v^{k-1} + (1-\beta)\,\tilde g(\theta^k)^2 \\
    \theta^{k+1}   &= \theta^k - \eta\, m^k/(\sqrt{\bar v}+\rho)

Both gradients are taken on the batch of step k: two queries. Moments are averaged over clients at the end of
a round, and :math:`\bar v` does not change within it. At the first step of a round there is no
:math:`\theta^{k-1}` of this client: :math:`m = \alpha\tilde g + (1-\alpha)\bar m`, one query. The paper
has no private form; this one is ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from adamas import _validate
from adamas._numerics.sums import accumulation_dtype
from adamas.federated.algorithm import (
    Algorithm,
    Client,
    Records,
    Round,
    by_parameter,
    copied,
    differences,
    moments_like,
)
from adamas.geometry import Value
from adamas.rules.base import Options, Params, Rule, State


@dataclass(frozen=True, kw_only=True)
class FAFED(Algorithm):
    """Local steps with a variance-reduced momentum over shared second moments.

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
    averages: ClassVar[tuple[str, ...]] = ("momentum", "second-moments")

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.rate(momentum=self.momentum)
        _validate.decay(beta=self.beta)
        _validate.positive(rho=self.rho)

    def start(self, model: nn.Module) -> Records:
        """See `Algorithm.start`."""
        state = super().start(model)
        zeros = moments_like(state["parameters"])
        return state | {"momentum": zeros, "second-moments": copied(zeros)}

    def train(self, client: Client, received: Records, round: Round) -> Records:
        """See `Algorithm.train`."""
        client.load(received["parameters"])
        rule = Storm(
            client.parameters.values(),
            lr=self.rate(round),
            momentum=self.momentum,
            beta=self.beta,
            rho=self.rho,
            moments=by_parameter(client, received["momentum"]),
            second_moments=by_parameter(client, received["second-moments"]),
        )
        before: dict[Tensor, Tensor] = {}
        with client.private_run(rule, round.local_steps) as run:
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
        kept = {name: rule.state[p] for name, p in client.parameters.items()}
        return {
            "increment": differences(client.parameters, received["parameters"]),
            "momentum": {name: state["m"] for name, state in kept.items()},
            "second-moments": {name: state["v"] for name, state in kept.items()},
        }


class Storm(Rule):
    """Steps along a momentum from which the change of the gradient between two steps is known.

    Args:
        params: Parameters.
        lr: Learning rate.
        momentum: The share of the new gradient.
        beta: Decay of the second moment.
        rho: Added to the root of the second moment.
        moments: Where the momentum starts.
        second_moments: Where the second moment starts; what every step divides by.

    Attributes:
        earlier: The release at the parameters of the step before, on the batch of the coming step.
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
        self._divisor = {}
        for p, m in moments.items():
            dtype = accumulation_dtype(p.dtype)
            v = second_moments[p].to(dtype, copy=True)
            self._divisor[p] = v.sqrt() + rho
            self.state[p] = {"m": m.to(dtype, copy=True), "v": v}

    def _update(
        self, p: Tensor, gradient: Tensor, noise_variance: Value, group: Options, state: State
    ) -> None:
        g, share = gradient.to(state["m"].dtype), group["momentum"]
        if self.earlier is None:
            state["m"].lerp_(g, share)
        else:
            state["m"].sub_(self.earlier[p]).mul_(1 - share).add_(g)
        state["v"].mul_(group["beta"]).addcmul_(g, g, value=1 - group["beta"])
        p.addcdiv_(state["m"], self._divisor[p], value=-group["lr"])


@torch.no_grad()
def _set(values: dict[Tensor, Tensor]) -> None:
    for p, value in values.items():
        p.copy_(value)
