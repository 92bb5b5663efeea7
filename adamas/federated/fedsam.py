r"""DP-FedSAM (Shi et al., 2023): local sharpness-aware steps.

.. math::
    e_i^k            &= \rho\,\tilde g_i(\theta_i^k)/\|\tilde g_i(\theta_i^k)\|             \qquad (1) \\
    \theta_i^{k+1}   &= \theta_i^k - \eta(\tilde g_i(\theta_i^k + e_i^k) + \lambda\theta_i^k) \qquad (2)

The norm runs over all parameters. Both gradients are released, on the same batch: two queries per step. The
server averages increments: (2) of `adamas.federated.fedavg`.

Y. Shi, Y. Liu, K. Wei, L. Shen, X. Wang and D. Tao, "Make Landscape Flatter in Differentially Private
Federated Learning", CVPR 2023, arXiv:2303.11242; sharpness-aware steps are those of P. Foret, A. Kleiner,
H. Mobahi and B. Neyshabur, "Sharpness-Aware Minimization for Efficiently Improving Generalization", ICLR
2021, arXiv:2010.01412.

Differs from the paper: it protects clients, by noise on whole updates. That is `unit="client"`, where local
steps have no noise. With `unit="record"` both gradients of a step are private.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from adamas import _validate, rules
from adamas.federated.algorithm import Round
from adamas.federated.arrays import Records, differences
from adamas.federated.client import Client
from adamas.federated.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedSAM(FedAvg):
    """Local sharpness-aware DP-SGD; the server averages increments.

    Attributes:
        radius: rho, the length of the ascent step.
    """

    radius: float = 0.05

    queries: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive(radius=self.radius)

    def train(self, client: Client, received: Records, round: Round) -> Records:
        """See `Algorithm.train`."""
        client.load(received["parameters"])
        rule = rules.SGD(client.parameters.values(), lr=self.rate(round), weight_decay=self.weight_decay)
        with client.private_run(rule, round.local_steps) as run:
            for batch in run.batches():
                ascent = run.privatize(batch).mean
                length = torch.linalg.vector_norm(torch.stack([g.norm() for g in ascent.values()]))
                here = {p: p.detach().clone() for p in ascent}
                if length > 0:
                    with torch.no_grad():
                        for p, g in ascent.items():
                            p.add_((g * (self.radius / length)).to(p.dtype))  # (1)
                release = run.privatize(batch)
                with torch.no_grad():
                    for p, value in here.items():
                        p.copy_(value)
                release.write_to(rule)
                rule.step()  # (2)
        return {"increment": differences(client.parameters, received["parameters"])}
