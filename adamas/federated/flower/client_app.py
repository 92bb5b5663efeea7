"""The client's side on Flower. What its owner allows is the node's configuration: `node_config`.

What the records cost is written before the data are touched, into a file if the node has one, and else into
Flower's state of the node, where an algorithm's memory is too. A failure is answered by the name of the error
alone: its text could contain examples.
"""

import functools
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from filelock import FileLock
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from adamas._files import replace_text
from adamas.federated.algorithm import Client, Round
from adamas.federated.flower.messages import pack, packed_arrays, unpack, unpacked_arrays
from adamas.federated.flower.node_config import NodeConfig, RefusedError
from adamas.federated.settings import FederatedSettings
from adamas.federated.simulation import client_seed
from adamas.federated.task import Task, make_task
from adamas.federated.training import make_client
from adamas.ledger import Ledger

_LEDGER = "ledger"
_MEMORY = "memory/"
_LOG = logging.getLogger("adamas.federated")

app = ClientApp()


@app.query()
def describe(message: Message, context: Context) -> Message:
    """Answers which client this is, and how many examples it has."""
    return Message(_answered(_describe, message, context), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Trains for a round, and answers with the update."""
    return Message(_answered(_train, message, context), reply_to=message)


def _answered(
    act: Callable[[RecordDict, Context], RecordDict], message: Message, context: Context
) -> RecordDict:
    """What a function makes of a message, or the name of what went wrong."""
    try:
        return act(message.content, context)
    except Exception as error:  # whatever a user's model or data raise
        _LOG.exception("This client does not take part.")
        return pack({}, {"failed": type(error).__name__})


def _describe(content: RecordDict, context: Context) -> RecordDict:
    _, words = unpack(content)
    settings = FederatedSettings.from_json(words["settings"])
    node = NodeConfig.of(context.node_config)
    node.check(settings)
    data = _task(words["settings"]).client_data(node.number, settings.clients)
    return pack({}, {"client": node.number, "examples": len(data)})  # type: ignore[arg-type]


def _train(content: RecordDict, context: Context) -> RecordDict:
    received, words = unpack(content)
    settings = FederatedSettings.from_json(words["settings"])
    now = Round(**words["round"])
    node = NodeConfig.of(context.node_config)
    node.check(settings)
    task = _task(words["settings"])
    client = make_client(settings, task, node.number, words["noise_multiplier"])
    if len(client.dataset) != words["examples"]:  # type: ignore[arg-type]
        raise RefusedError(
            f"This client has {len(client.dataset)} examples now and {words['examples']} when the training "  # type: ignore[arg-type]
            "began, which is what it is charged for. Go on with the same examples, or start again."
        )
    client.seed = client_seed(settings.seed, node.number, now.number)
    for name, record in context.state.array_records.items():
        if name.startswith(_MEMORY):
            client.memory[name.removeprefix(_MEMORY)] = unpacked_arrays(record)
    algorithm = settings.make_algorithm(task.make_blocks(client.model))
    with _ledger(node, context) as (ledger, write):
        client.ledger = ledger
        if settings.unit == "record":
            write(_charged(client, settings, now, node))
        try:
            update = algorithm.train(client, received, now)
        finally:
            write(client.ledger)
    for name, arrays in client.memory.items():
        context.state[_MEMORY + name] = packed_arrays(arrays)
    return pack(update, {})


@functools.lru_cache(maxsize=1)
def _task(settings: str) -> Task:
    return make_task(FederatedSettings.from_json(settings))


def _charged(client: Client, settings: FederatedSettings, now: Round, node: NodeConfig) -> Ledger:
    """The ledger after a round, as far as the node's budget allows for it."""
    planned = client.ledger.copy()
    if client.noise_multiplier > 0:
        plan = settings.plan([len(client.dataset)])  # type: ignore[arg-type]
        planned.record(plan.event(client.noise_multiplier), now.local_steps)
    if node.max_epsilon is not None:
        assert node.delta is not None
        private = client.noise_multiplier > 0
        cost = planned.epsilon(node.delta, settings.accountant) if private else float("inf")
        if cost > node.max_epsilon:
            raise RefusedError(
                f"This round would bring epsilon to {cost:.4g} at delta={node.delta:g}, and the node has "
                f"max-epsilon={node.max_epsilon:g}."
            )
    return planned


@contextmanager
def _ledger(node: NodeConfig, context: Context) -> Iterator[tuple[Ledger, Callable[[Ledger], None]]]:
    """What the node's records have cost, and what writes it; nobody else writes a file meanwhile."""
    ledger = Ledger()
    if node.ledger is None:
        if _LEDGER in context.state.config_records:
            ledger.load_state_dict(json.loads(str(context.state.config_records[_LEDGER]["json"])))
        yield ledger, functools.partial(_write_to_state, context)
        return
    with FileLock(node.ledger.with_name(node.ledger.name + ".lock")):
        if node.ledger.exists():
            ledger.load_state_dict(json.loads(node.ledger.read_text()))
        file = node.ledger
        yield ledger, lambda written: replace_text(file, json.dumps(written.state_dict()))


def _write_to_state(context: Context, ledger: Ledger) -> None:
    context.state[_LEDGER] = ConfigRecord({"json": json.dumps(ledger.state_dict())})
