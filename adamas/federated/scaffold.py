r"""DP-SCAFFOLD (Noble, Bellet and Dieuleveut, 2022): SGD with control variates against client drift.

.. math::
    \theta_i^{k+1} &= \theta_i^k - \eta(\tilde g_i^k - c_i + c)                           \qquad (1) \\
    c_i^+          &= c_i - c + (\theta^t - \theta_i^K)/(K\eta)                           \qquad (2) \\
    \theta^{t+1}   &= \theta^t + \frac1S \sum_i (\theta_i^K - \theta^t)                  \qquad (3) \\
    c^{t+1}        &= c + \frac1N \sum_i (c_i^+ - c_i)                                   \qquad (4)

By (1), :math:`c_i^+` is the mean of the round's private gradients. So control variates are functions of
releases and cost no privacy. S is the expected number of clients of a round, N the number of clients in the
training; sums run over the clients that answered.

M. Noble, A. Bellet and A. Dieuleveut, "Differentially Private Federated Learning on Heterogeneous Data",
AISTATS 2022, arXiv:2111.09278; without privacy S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi,
S. U. Stich and A. T. Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
arXiv:1910.06378.

Differs from the paper: control variates always start at 0, there is no warm start; the server's learning rate
is 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from adamas._numerics.sums import accumulation_dtype
from adamas.federated.algorithm import Algorithm, Round
from adamas.federated.arrays import Arrays, Records, differences, divided_sum, sums, zeros_like
from adamas.federated.client import Client, by_parameter
from adamas.geometry import Value
from adamas.rules.base import Options, Params, Rule, State


@dataclass(frozen=True, kw_only=True)
class Scaffold(Algorithm):
    """Local SGD, corrected by the difference between the client's control variate and the server's.

    Clients keep their control variate between rounds. If an update is lost on its way, the client's has
    changed and the server's has not: from then on the two differ by that change.
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
        shared = received["control"]
        own = client.memory.get("control") or zeros_like(shared)
        drift = differences(shared, own)
        rate = self.rate(round)
        rule = CorrectedSGD(client.parameters.values(), lr=rate, correction=by_parameter(client, drift))
        client.train(rule, round.local_steps)
        increment = differences(client.parameters, received["parameters"])
        change = self._change(shared, increment, round.local_steps * rate)
        if all(bool(value.isfinite().all()) for value in change.values()):  # else the server leaves it out
            client.memory["control"] = sums(own, change)  # (2)
        return {"increment": increment, "control": change}

    @staticmethod
    def _change(shared: Arrays, increment: Arrays, length: float) -> Arrays:
        """Computes the change of the client's control variate by (2): -c - increment / (K eta)."""
        return {name: -c - increment[name] / length for name, c in shared.items()}

    def aggregate(
        self, state: Records, updates: Sequence[Records], *, expected: float, clients: int, round: Round
    ) -> Records:
        """See `Algorithm.aggregate`."""
        result = super().aggregate(state, updates, expected=expected, clients=clients, round=round)  # (3)
        change = divided_sum([update["control"] for update in updates], clients)
        return result | {"control": sums(state["control"], change)}  # (4)


class CorrectedSGD(Rule):
    """SGD along the gradient plus a given vector.

    Args:
        params: Parameters.
        lr: Learning rate.
        correction: Vector that is added to each parameter's gradient: c - c_i.
    """

    def __init__(self, params: Params, *, lr: float, correction: dict[Tensor, Tensor]) -> None:
        super().__init__(params, {"lr": lr})
        self._correction = correction

    def _update(
        self, p: Tensor, gradient: Tensor, noise_variance: Value, group: Options, state: State
    ) -> None:
        direction = gradient.to(accumulation_dtype(p.dtype)) + self._correction[p]
        p.add_(direction, alpha=-group["lr"])  # (1)
