r"""DP-FedAvg (McMahan et al., 2017, with private local steps).

.. math::
    \theta_i^{k+1} = \theta_i^k - \eta(\tilde g_i^k + \lambda\theta_i^k), \qquad
    \theta^{t+1} = \theta^t + \frac1S \sum_i (\theta_i^K - \theta^t)
"""

from dataclasses import dataclass

from adamas import _validate, rules
from adamas.federated.algorithm import Algorithm, Client, Records, Round, differences
from adamas.rules.base import Rule


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """Local DP-SGD, and the average of the increments.

    Attributes:
        weight_decay: lambda.
    """

    lr: float = 0.1
    weight_decay: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.non_negative(weight_decay=self.weight_decay)

    def rule(self, client: Client, round: Round) -> Rule:
        """What steps on the private gradients."""
        return rules.SGD(client.parameters.values(), lr=self.rate(round), weight_decay=self.weight_decay)

    def train(self, client: Client, received: Records, round: Round) -> Records:
        """See `Algorithm.train`."""
        client.load(received["parameters"])
        client.train(self.rule(client, round), round.local_steps)
        return {"increment": differences(client.parameters, received["parameters"])}
