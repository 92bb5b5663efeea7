"""A small federated server and its clients, for the regression of `federated_regression`."""

import torch

from adamas.federated import ALGORITHMS, Client, InProcess, Plan, Server, run_rounds
from tests.support.federated_regression import FEATURES, Regression, make_client

SIZES = (6, 7, 8, 9)
PLAN = {"rounds": 5, "local_steps": 2, "sampling_rate": 3 / 6, "delta": 1e-5, "accountant": "rdp"}


def make_server(algorithm=None, *, model=None, plan=None, **options) -> Server:
    defaults = {
        "sizes": SIZES,
        "plan": plan or Plan(**PLAN),
        "batch_size": 3,
        "participation": 0.5,
        "noise_multiplier": 1.0,
        "seed": 0,
    }
    return Server(algorithm or ALGORITHMS["dp-fedavg"](lr=0.05), model or Regression(), **defaults | options)


def make_clients(**options) -> list[Client]:
    settings = {"batch_size": 3, "noise_multiplier": 1.0, "clip_norm": 1.0} | options
    return [make_client(number, **settings) for number in range(len(SIZES))]


def increment(value: float = 1.0) -> dict:
    """An update whose every coordinate is `value`."""
    return {"increment": {"weight": torch.full((FEATURES,), value, dtype=torch.float64)}}


def simulate(server, clients, *, seed, closed=lambda _: None) -> None:
    """Runs the remaining rounds of a server with clients in this process."""
    run_rounds(server, InProcess(server, clients, seed), closed=closed)


def failing_loss(model, batch):
    """The loss of a client whose every round fails."""
    raise OSError("disk gone")
