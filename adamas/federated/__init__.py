"""Federated training: clients run the same door and rules as a central run, and a server combines.

algorithm       what an algorithm is: plain functions of state
fedadamw        DP-FedAdamW: shared second moments of blocks, de-biasing, alignment
fedavg          DP-FedAvg, and what the others are compared with: fedavg_ls, scaffold, fedsam,
                local_adamw, fedopt, fafed, fedlada
blocks          which parameters share a second moment
registry        the algorithms by name
server          whom it asks, which answers it takes, and what that costs
accounting      the epsilon of a record, or of a client
checks          what a peer may send
simulation      all clients in one process
partition       which client has which examples
settings, task  what is trained on whose data, as plain data or a user's module
training        from settings to files, over whatever carries the messages
flower/         messages by Flower: simulation and deployment
"""

from adamas.federated.accounting import Plan
from adamas.federated.algorithm import Algorithm, Round
from adamas.federated.arrays import Arrays, Records
from adamas.federated.blocks import Block, Blocks
from adamas.federated.client import Client
from adamas.federated.fafed import FAFED
from adamas.federated.fedadamw import FedAdamW
from adamas.federated.fedavg import FedAvg
from adamas.federated.fedavg_ls import FedAvgLS
from adamas.federated.fedlada import FedLADA
from adamas.federated.fedopt import FedOpt
from adamas.federated.fedsam import FedSAM
from adamas.federated.local_adamw import LocalAdamW
from adamas.federated.partition import dirichlet_partition
from adamas.federated.registry import ALGORITHMS
from adamas.federated.rounds import run_rounds
from adamas.federated.scaffold import Scaffold
from adamas.federated.server import NoAnswerError, RoundReport, Server
from adamas.federated.settings import FederatedSettings
from adamas.federated.simulation import InProcess
from adamas.federated.task import Task, make_task
from adamas.federated.training import train_in_process

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
    "FederatedSettings",
    "InProcess",
    "LocalAdamW",
    "NoAnswerError",
    "Plan",
    "Records",
    "Round",
    "RoundReport",
    "Scaffold",
    "Server",
    "Task",
    "dirichlet_partition",
    "make_task",
    "run_rounds",
    "train_in_process",
]
