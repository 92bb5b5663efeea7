"""Federated training: clients run the same door and rules as a central run, and a server combines.

algorithm       what an algorithm is: plain functions of state
fedadamw        DP-FedAdamW: shared second moments of blocks, de-biasing, alignment
fedavg          DP-FedAvg, and what the others are compared with: fedavg_ls, scaffold, fedsam,
                local_adamw, fedopt, fafed, fedlada
blocks          which parameters share a second moment
server          whom it asks, which answers it takes, and what that costs
accounting      the epsilon of a record, or of a client
simulation      all clients in one process
partition       which client has which examples
"""

from adamas.federated.accounting import Plan
from adamas.federated.algorithm import Algorithm, Arrays, Client, Records, Round
from adamas.federated.blocks import Block, Blocks
from adamas.federated.fafed import FAFED
from adamas.federated.fedadamw import FedAdamW
from adamas.federated.fedavg import FedAvg
from adamas.federated.fedavg_ls import FedAvgLS
from adamas.federated.fedlada import FedLADA
from adamas.federated.fedopt import FedOpt
from adamas.federated.fedsam import FedSAM
from adamas.federated.local_adamw import LocalAdamW
from adamas.federated.partition import dirichlet_partition
from adamas.federated.scaffold import Scaffold
from adamas.federated.server import NoAnswerError, RoundReport, Server
from adamas.federated.simulation import InProcess, run_rounds

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

__all__ = [
    "ALGORITHMS",
    "FAFED",
    "Algorithm",
    "Arrays",
    "Block",
    "Blocks",
    "Client",
    "FedAdamW",
    "FedAvg",
    "FedAvgLS",
    "FedLADA",
    "FedOpt",
    "FedSAM",
    "InProcess",
    "LocalAdamW",
    "NoAnswerError",
    "Plan",
    "Records",
    "Round",
    "RoundReport",
    "Scaffold",
    "Server",
    "dirichlet_partition",
    "run_rounds",
]
