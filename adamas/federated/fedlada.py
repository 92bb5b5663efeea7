r"""DP-FedLADA (Sun et al., 2023, with private local steps): local Adam amended by everybody's direction.

.. math::
    \theta_i^{k+1} = \theta_i^k - \eta\Big((1-\gamma)\frac{m_i^k}{\sqrt{v_i^k}+\epsilon} + \gamma\Delta_G\Big)

The second moment of every coordinate is averaged over clients, which doubles what is sent; the first starts
at 0 in each round. Neither is corrected for its start.
"""

from collections.abc import Sequence
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
    differences,
    moments_like,
    zeros_like,
)
from adamas.geometry import Value
from adamas.rules.base import Options, Params, Rule, State


@dataclass(frozen=True, kw_only=True)
class FedLADA(Algorithm):
    """Local Adam with shared second moments and an amended direction.

    Attributes:
        betas: Decays of the moments.
        eps: For stability.
        alignment: gamma, the weight of everybody's direction.
    """

    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    alignment: float = 0.9

    sends: ClassVar[tuple[str, ...]] = ("parameters", "second-moments", "direction")
    uploads: ClassVar[tuple[str, ...]] = ("increment", "second-moments")
    averages: ClassVar[tuple[str, ...]] = ("second-moments",)

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.decays(betas=self.betas)
        _validate.positive(eps=self.eps)
        _validate.decay(alignment=self.alignment)

    def start(self, model: nn.Module) -> Records:
        """See `Algorithm.start`."""
        state = super().start(model)
        parameters = state["parameters"]
        return state | {"second-moments": moments_like(parameters), "direction": zeros_like(parameters)}

    def train(self, client: Client, received: Records, round: Round) -> Records:
        """See `Algorithm.train`."""
        client.load(received["parameters"])
        rule = AmendedAdam(
            client.parameters.values(),
            lr=self.rate(round),
            betas=self.betas,
            eps=self.eps,
            alignment=self.alignment,
            second_moments=by_parameter(client, received["second-moments"]),
            direction=by_parameter(client, received["direction"]),
        )
        client.train(rule, round.local_steps)
        return {
            "increment": differences(client.parameters, received["parameters"]),
            "second-moments": {name: rule.state[p]["v"] for name, p in client.parameters.items()},
        }

    def aggregate(
        self, state: Records, updates: Sequence[Records], *, expected: float, clients: int, round: Round
    ) -> Records:
        """See `Algorithm.aggregate`."""
        result = super().aggregate(state, updates, expected=expected, clients=clients, round=round)
        return result | {"direction": self.direction(updates, expected, round)}


class AmendedAdam(Rule):
    """Adam with a given start of the second moment, and a given direction mixed in.

    Args:
        params: Parameters.
        lr: Learning rate.
        betas: Decays of the moments.
        eps: For stability.
        alignment: The weight of the given direction.
        second_moments: Where each parameter's second moment starts.
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
        for p, v in second_moments.items():
            dtype = accumulation_dtype(p.dtype)
            self.state[p] = {"m": torch.zeros_like(p, dtype=dtype), "v": v.to(dtype, copy=True)}

    def _update(
        self, p: Tensor, gradient: Tensor, noise_variance: Value, group: Options, state: State
    ) -> None:
        b1, b2 = group["betas"]
        g = gradient.to(state["m"].dtype)
        state["m"].lerp_(g, 1 - b1)
        state["v"].mul_(b2).addcmul_(g, g, value=1 - b2)
        own = state["m"] / (state["v"].sqrt() + group["eps"])
        step = own.lerp_(self._direction[p].to(own.dtype), group["alignment"])
        p.add_(step, alpha=-group["lr"])
