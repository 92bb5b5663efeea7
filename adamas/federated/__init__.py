"""Federated training: clients release private gradients like a central run, and a server combines updates.

- `algorithm`: the interface of an algorithm, functions of state.
- `fedadamw`: DP-FedAdamW, with averaged second moments of blocks, noise subtracted, and alignment.
- `fedavg`: DP-FedAvg. Other baselines: `fedavg_ls`, `scaffold`, `fedsam`, `local_adamw`, `fedopt`, `fafed`,
  `fedlada`.
- `averaged_moments`: the scaffold of algorithms that average moments coordinate by coordinate.
- `registry`: the algorithms by name.
- `blocks`: the parameters that share a second moment.
- `arrays`: tensors by name, and their arithmetic.
- `client`, `local_runs`: a client, and its private runs.
- `server`: chooses clients, checks and combines answers, counts the cost.
- `preconditions`: checks before the first round.
- `accounting`: the epsilon of a record, or of a client.
- `checks`: checks of data from a peer.
- `rounds`: the loop of rounds, which simulation and deployment share.
- `simulation`: all clients in one process.
- `partition`: divides the examples of a data set among clients.
- `settings`, `task`: the settings as plain data; model, data and loss.
- `training`: one training from settings to files.
- `flower/`: transport by Flower, in simulation and deployment.
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
