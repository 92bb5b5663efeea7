r"""DP-SCAFFOLD (Noble, Bellet and Dieuleveut, 2022).

.. math::
    \theta_i^{k+1} &= \theta_i^k - \eta(\tilde g_i^k - c_i + c) \\
    c_i^+          &= c_i - c + (\theta^t - \theta_i^K)/(K\eta) \\
    c^{t+1}        &= c + \frac1N \sum_{i \in S} (c_i^+ - c_i)

Control variates are made of increments, which are made of releases, so they cost no privacy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from adamas._numerics.sums import accumulation_dtype
from adamas.federated.algorithm import (
    Algorithm,
    Arrays,
    Client,
    Records,
    Round,
    by_parameter,
    differences,
    divided_sum,
    sums,
    zeros_like,
)
from adamas.geometry import Value
from adamas.rules.base import Options, Params, Rule, State


@dataclass(frozen=True, kw_only=True)
class Scaffold(Algorithm):
    """Local steps corrected by the difference between the client's direction and everybody's.

    Clients keep their control variate from round to round. If an update is lost on its way, the client's has
    changed and everybody's has not: they differ by that much from then on.
    """

    lr: float = 0.1

    sends: ClassVar[tuple[str, ...]] = ("parameters", "control")
    uploads: ClassVar[tuple[str, ...]] = ("increment", "control")
    clients_remember: ClassVar[bool] = True

    def start(self, model: nn.Module) -> Records:
        """See `Algorithm.start`."""
        state = super().start(model)
        return state | {"control": zeros_like(state["parameters"])}

    def train(self, client: Client, received: Records, round: Round) -> Records:
        """See `Algorithm.train`."""
        client.load(received["parameters"])
        everybody = received["control"]
        own = client.memory.get("control") or zeros_like(everybody)
        drift = differences(everybody, own)
        rate = self.rate(round)
        rule = CorrectedSGD(client.parameters.values(), lr=rate, correction=by_parameter(client, drift))
        client.train(rule, round.local_steps)
        increment = differences(client.parameters, received["parameters"])
        change = self._change(everybody, increment, round.local_steps * rate)
        if all(bool(value.isfinite().all()) for value in change.values()):  # else the server leaves it out
            client.memory["control"] = sums(own, change)
        return {"increment": increment, "control": change}

    @staticmethod
    def _change(everybody: Arrays, increment: Arrays, length: float) -> Arrays:
        """What the client's control variate changes by: -c - increment / (K eta)."""
        return {name: -c - increment[name] / length for name, c in everybody.items()}

    def aggregate(
        self, state: Records, updates: Sequence[Records], *, expected: float, clients: int, round: Round
    ) -> Records:
        """See `Algorithm.aggregate`."""
        result = super().aggregate(state, updates, expected=expected, clients=clients, round=round)
        change = divided_sum([update["control"] for update in updates], clients)
        return result | {"control": sums(state["control"], change)}


class CorrectedSGD(Rule):
    """SGD along the gradient plus a given vector.

    Args:
        params: Parameters.
        lr: Learning rate.
        correction: What is added to each parameter's gradient.
    """

    def __init__(self, params: Params, *, lr: float, correction: dict[Tensor, Tensor]) -> None:
        super().__init__(params, {"lr": lr})
        self._correction = correction

    def _update(
        self, p: Tensor, gradient: Tensor, noise_variance: Value, group: Options, state: State
    ) -> None:
        direction = gradient.to(accumulation_dtype(p.dtype)) + self._correction[p]
        p.add_(direction, alpha=-group["lr"])
