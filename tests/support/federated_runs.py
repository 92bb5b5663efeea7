"""Settings of small federated trainings, and readers of the files they leave."""

import json

from adamas._storage.archive import read_archive
from adamas.federated.settings import FederatedSettings
from adamas.federated.task import make_task
from adamas.federated.training import train_in_process

BLOBS = {
    "task": "tests.support.federated_blobs",
    "clients": 4,
    "participation": 0.5,
    "rounds": 3,
    "local_steps": 2,
    "batch_size": 10,
    "noise_multiplier": 1.0,
    "delta": 1e-3,
    "accountant": "rdp",
    "seed": 0,
}


def blobs(**options) -> FederatedSettings:
    return FederatedSettings(**BLOBS | options)


def run(settings, out, **options):
    return train_in_process(settings, make_task(settings), out, **options)


def saved_state(out):
    return read_archive(out / "state.safetensors", "federated training", 1)["server"]


def lines(out):
    return [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
