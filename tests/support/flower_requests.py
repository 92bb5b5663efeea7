"""Requests of a server to a Flower node, honest until a test changes them, and what the node is charged."""

import json
from dataclasses import asdict
from pathlib import Path

from flwr.app import Context, RecordDict

from adamas.federated.algorithm import Round
from adamas.federated.flower import client_app
from adamas.federated.flower.messages import pack, unpack
from tests.support import federated_blobs
from tests.support.federated_messages import sent
from tests.support.federated_runs import blobs

EXAMPLES, BATCH, NOISE, LR = federated_blobs.EXAMPLES, 10, 2.0, 1.0
REFUSED = {"failed": "RefusedError"}


class Request:
    """A request to train, which is honest until a test changes it."""

    def __init__(self, *, number: int = 0, **settings) -> None:
        plain = {"algorithm": "dp-fedavg", "algorithm_options": {"lr": LR}, "noise_multiplier": NOISE}
        made = blobs(**plain | {"local_steps": 1, "batch_size": BATCH, "seed": None} | settings)
        self.settings = json.loads(made.to_json())
        self.words = {
            "noise_multiplier": made.noise_multiplier,
            "round": asdict(Round(number, made.rounds, made.local_steps)),
            "examples": EXAMPLES,
        }
        self.records = made.make_algorithm().start(federated_blobs.make_model())
        self.text = None

    def set(self, **settings) -> None:
        self.settings |= settings
        if "noise_multiplier" in settings:
            self.words["noise_multiplier"] = settings["noise_multiplier"]

    def content(self) -> RecordDict:
        text = json.dumps(self.settings) if self.text is None else self.text
        return pack(self.records, {"settings": text, **self.words})


def reply_to(request: Request | RecordDict, context: Context) -> tuple[dict, dict]:
    """Sends a request to a node through Flower's app, and returns the records and words of the reply."""
    content = request if isinstance(request, RecordDict) else request.content()
    return unpack(client_app.app(sent(content, "train"), context).content)


def charged(context: Context) -> list[tuple[float, int]]:
    """Reads the noise multiplier and the number of steps of each entry in the node's ledger."""
    file = Path(context.node_config["ledger"])
    if not file.exists():
        return []
    entries = json.loads(file.read_text())["entries"]
    return [(entry["event"]["event"]["noise_multiplier"], entry["count"]) for entry in entries]
