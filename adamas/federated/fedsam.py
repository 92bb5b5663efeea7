r"""DP-FedSAM (Shi et al., 2023), with private local steps.

.. math::
    e_i^k            = \rho\,\tilde g_i(\theta_i^k)/\|\tilde g_i(\theta_i^k)\|, \qquad
    \theta_i^{k+1}   = \theta_i^k - \eta(\tilde g_i(\theta_i^k + e_i^k) + \lambda\theta_i^k)

Both gradients are released, on the same batch: two queries per step. Where the server adds the noise
(`unit="client"`), as the paper has it, local steps have none and are free.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from adamas import _validate, rules
from adamas.federated.algorithm import Client, Records, Round, differences
from adamas.federated.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedSAM(FedAvg):
    """Local sharpness-aware steps, and the average of the increments.

    Attributes:
        radius: rho, the length of the step uphill.
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
                uphill = run.privatize(batch).mean
                length = torch.linalg.vector_norm(torch.stack([g.norm() for g in uphill.values()]))
                here = {p: p.detach().clone() for p in uphill}
                if length > 0:
                    with torch.no_grad():
                        for p, g in uphill.items():
                            p.add_((g * (self.radius / length)).to(p.dtype))
                release = run.privatize(batch)
                with torch.no_grad():
                    for p, value in here.items():
                        p.copy_(value)
                release.write_to(rule)
                rule.step()
        return {"increment": differences(client.parameters, received["parameters"])}
