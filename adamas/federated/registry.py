"""Federated algorithms by name."""

from adamas.federated.algorithm import Algorithm
from adamas.federated.fafed import FAFED
from adamas.federated.fedadamw import FedAdamW
from adamas.federated.fedavg import FedAvg
from adamas.federated.fedavg_ls import FedAvgLS
from adamas.federated.fedlada import FedLADA
from adamas.federated.fedopt import FedOpt
from adamas.federated.fedsam import FedSAM
from adamas.federated.local_adamw import LocalAdamW
from adamas.federated.scaffold import Scaffold

ALGORITHMS: dict[str, type[Algorithm]] = {
    "dp-fedadamw": FedAdamW,
    "dp-fedavg": FedAvg,
    "dp-fedavg-ls": FedAvgLS,
    "dp-scaffold": Scaffold,
    "dp-fedsam": FedSAM,
    "dp-localadamw": LocalAdamW,
    "dp-fedopt": FedOpt,
    "dp-fafed": FAFED,
    "dp-fedlada": FedLADA,
}
"""Algorithms by name."""
