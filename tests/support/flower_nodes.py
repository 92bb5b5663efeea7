"""Flower nodes without a network: their contexts, and one round on the client's side."""

from dataclasses import asdict
from pathlib import Path

from flwr.app import Context, RecordDict

from adamas.federated.algorithm import Round
from adamas.federated.flower import client_app
from adamas.federated.flower.messages import pack, unpack
from adamas.federated.flower.node_config import NodeConfig
from adamas.federated.settings import FederatedSettings
from adamas.federated.task import make_task
from adamas.federated.training import make_server

TASK = "tests.support.federated_blobs"
NOW = Round(1, 3, 2)


def node(client: int = 0, *, run: int = 1, **config) -> Context:
    """Makes the context of a node that trains `federated_blobs`. Without a ledger, it also accepts a seed."""
    own = {} if "ledger" in config else {"allow-seed": True}
    return Context(run, 1, {"partition-id": client, "task": TASK, **own, **config}, RecordDict(), {})


def node_with_budget(folder: Path, *, run: int = 1, **config) -> Context:
    """Makes the context of a node with a ledger in `folder` and a budget for a few honest rounds."""
    limits = {"ledger": str(folder / "ledger.json"), "max-epsilon": 4.0, "delta": 1e-5}
    return node(run=run, **limits | config)


def trained(
    settings: FederatedSettings, context: Context, *, round: Round = NOW, examples: int | None = None
) -> tuple[dict, dict]:
    """Trains one round on the client's side, and returns the records and words of its reply."""
    task = make_task(settings)
    server = make_server(settings, task, [len(task.client_data(number, 4)) for number in range(4)])
    _, records = server.open_round()
    number = context.node_config["partition-id"]
    words = {
        "settings": settings.to_json(),
        "round": asdict(round),
        "noise_multiplier": server.noise_multiplier,
        "examples": server.sizes[number] if examples is None else examples,
    }
    return unpack(client_app._train(pack(records, words), NodeConfig.of(context.node_config), context))
