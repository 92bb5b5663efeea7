r"""DP-FedAvg (McMahan et al., 2017), with private local steps.

.. math::
    \theta_i^{k+1} &= \theta_i^k - \eta(\tilde g_i^k + \lambda\theta_i^k)                \qquad (1) \\
    \theta^{t+1}   &= \theta^t + \frac1S \sum_i (\theta_i^K - \theta^t)                  \qquad (2)

:math:`\tilde g_i^k` is the private gradient of client i at local step k; a round starts at
:math:`\theta_i^0 = \theta^t`. S is the expected number of clients of a round, and the sum runs over the
clients that answered.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson and B. Agüera y Arcas, "Communication-Efficient Learning of
Deep Networks from Decentralized Data", AISTATS 2017, arXiv:1602.05629. With `unit="client"` it is the
algorithm of H. B. McMahan, D. Ramage, K. Talwar and L. Zhang, "Learning Differentially Private Recurrent
Language Models", ICLR 2018, arXiv:1710.06963, with flat clipping and equal weights.

Differs from the papers: clients have equal weights, whatever their number of examples.
"""

from dataclasses import dataclass

from adamas import _validate, rules
from adamas.federated.algorithm import Algorithm, Round
from adamas.federated.arrays import Records, differences
from adamas.federated.client import Client
from adamas.rules.base import Rule


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """Local DP-SGD; the server averages increments.

    Attributes:
        weight_decay: lambda.
    """

    lr: float = 0.1
    weight_decay: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.non_negative(weight_decay=self.weight_decay)

    def rule(self, client: Client, round: Round) -> Rule:
        """Makes the rule of a client's local steps."""
        return rules.SGD(  # (1)
            client.parameters.values(), lr=self.rate(round), weight_decay=self.weight_decay
        )

    def train(self, client: Client, received: Records, round: Round) -> Records:
        """See `Algorithm.train`. The server adds increments up by (2), in `Algorithm.aggregate`."""
        client.load(received["parameters"])
        client.train(self.rule(client, round), round.local_steps)
        return {"increment": differences(client.parameters, received["parameters"])}
