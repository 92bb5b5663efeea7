"""The client's side on Flower.

Configuration of a node:

partition-id    the number of the client: 0, 1, ...
max-epsilon     the most that its records may cost; beyond it the client refuses, whatever the server asks
ledger          a file that keeps what the records have cost, over all runs and restarts of the node

Without `ledger` the costs are kept in Flower's state of the node, with what an algorithm remembers, for this
run. A failure is answered by the name of the error alone: its text could contain examples.
"""

import functools
import json
import logging
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from adamas._files import replace_file
from adamas.federated.algorithm import Client, Round
from adamas.federated.flower.messages import pack, packed_arrays, unpack, unpacked_arrays
from adamas.federated.settings import FederatedSettings
from adamas.federated.simulation import client_seed
from adamas.federated.task import Task, make_task
from adamas.federated.training import make_client
from adamas.ledger import Ledger

_LEDGER = "ledger"
_MEMORY = "memory/"
_LOG = logging.getLogger("adamas.federated")

app = ClientApp()


class BudgetError(RuntimeError):
    """Another round would cost the client's records more than its node allows."""


@app.query()
def describe(message: Message, context: Context) -> Message:
    """Answers which client this is, and how many examples it has."""
    _, words = unpack(message.content)
    settings = FederatedSettings.from_json(words["settings"])
    number = _number(context)
    data = _task(words["settings"]).client_data(number, settings.clients)
    return Message(pack({}, {"client": number, "examples": len(data)}), reply_to=message)  # type: ignore[arg-type]


@app.train()
def train(message: Message, context: Context) -> Message:
    """Trains for a round, and answers with the update or with the name of what went wrong."""
    try:
        content = _train(message, context)
    except Exception as error:  # whatever a user's model or data raise
        _LOG.exception("This client left a round out.")
        content = pack({}, {"failed": type(error).__name__})
    return Message(content, reply_to=message)


def _train(message: Message, context: Context) -> RecordDict:
    received, words = unpack(message.content)
    settings = FederatedSettings.from_json(words["settings"])
    now = Round(**words["round"])
    number = _number(context)
    task = _task(words["settings"])
    client = make_client(settings, task, number, words["noise_multiplier"])
    client.seed = client_seed(settings.seed, number, now.number)
    for name, record in context.state.array_records.items():
        if name.startswith(_MEMORY):
            client.memory[name.removeprefix(_MEMORY)] = unpacked_arrays(record)
    client.ledger = _read_ledger(context)
    if settings.unit == "record":
        # Written before anything is released, so that a crash cannot hide it.
        _write_ledger(_charged(client, settings, now, context), context)
    algorithm = settings.make_algorithm(task.make_blocks(client.model))
    try:
        update = algorithm.train(client, received, now)
    finally:
        _write_ledger(client.ledger, context)
    for name, arrays in client.memory.items():
        context.state[_MEMORY + name] = packed_arrays(arrays)
    return pack(update, {})


def _number(context: Context) -> int:
    if "partition-id" not in context.node_config:
        raise ValueError("Expected a node with partition-id, the number of its client, in its configuration.")
    return int(context.node_config["partition-id"])


@functools.lru_cache(maxsize=1)
def _task(settings: str) -> Task:
    return make_task(FederatedSettings.from_json(settings))


def _charged(client: Client, settings: FederatedSettings, now: Round, context: Context) -> Ledger:
    """The ledger after a round, as far as the node's budget allows for it."""
    planned = client.ledger.copy()
    if client.noise_multiplier > 0:
        plan = settings.plan([len(client.dataset)])  # type: ignore[arg-type]
        planned.record(plan.event(client.noise_multiplier), now.local_steps)
    most = context.node_config.get("max-epsilon")
    if most is not None:
        private = client.noise_multiplier > 0
        cost = planned.epsilon(settings.delta, settings.accountant) if private else float("inf")
        if cost > float(most):
            raise BudgetError(
                f"This round would bring epsilon to {cost:.4g}, and the node has max-epsilon={most}."
            )
    return planned


def _read_ledger(context: Context) -> Ledger:
    ledger = Ledger()
    if (file := _ledger_file(context)) is not None:
        if file.exists():
            ledger.load_state_dict(json.loads(file.read_text()))
    elif _LEDGER in context.state.config_records:
        ledger.load_state_dict(json.loads(str(context.state.config_records[_LEDGER]["json"])))
    return ledger


def _write_ledger(ledger: Ledger, context: Context) -> None:
    text = json.dumps(ledger.state_dict())
    if (file := _ledger_file(context)) is not None:
        replace_file(file, lambda path: _write_text(path, text))
    else:
        context.state[_LEDGER] = ConfigRecord({"json": text})


def _write_text(path: Path, text: str) -> None:
    path.write_text(text)


def _ledger_file(context: Context) -> Path | None:
    name = context.node_config.get("ledger")
    return None if name is None else Path(str(name))
