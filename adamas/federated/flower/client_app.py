"""The client's side on Flower. The node's configuration, `node_config`, says what its owner allows.

The cost of a round is written to the ledger, `node_ledger`, before the node trains on its data. The answer
to a refused request is the name RefusedError, which tells nothing about the data. The answer to any other
failure is one word, unless the node trusts the server: even the name of an error could depend on examples.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dp_accounting
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from adamas.accounting.ledger import Ledger
from adamas.federated.algorithm import Algorithm
from adamas.federated.checks import check_arrays, check_names
from adamas.federated.client import Client
from adamas.federated.flower.kept_probes import KeptProbes
from adamas.federated.flower.messages import pack, packed_arrays, unpacked_arrays
from adamas.federated.flower.node_config import NodeConfig, RefusedError
from adamas.federated.flower.node_ledger import node_ledger
from adamas.federated.flower.requests import TrainRequest, describe_request
from adamas.federated.rounds import client_seed
from adamas.federated.settings import FederatedSettings
from adamas.federated.task import Task, make_task
from adamas.federated.training import make_client
from adamas.sampling import joint_noise_multiplier

FAILED = "Error"
"""The answer of a node to a failure that the server must not know more about."""

_MEMORY = "memory/"
_LOG = logging.getLogger("adamas.federated")
_PROBES = KeptProbes()


def make_app(config: Mapping[str, Any] | None = None) -> ClientApp:
    """Makes the client's app.

    Args:
        config: Configuration that is added to every node's own.
    """
    made, more = ClientApp(), config or {}

    @made.query()
    def describe(message: Message, context: Context) -> Message:
        """Answers with the number of this client and its number of examples."""
        return Message(_answered(_describe, message, context, more), reply_to=message)

    @made.train()
    def train(message: Message, context: Context) -> Message:
        """Trains for a round, and answers with the update."""
        return Message(_answered(_train, message, context, more), reply_to=message)

    return made


app = make_app()


def _answered(
    act: Callable[[RecordDict, NodeConfig, Context], RecordDict],
    message: Message,
    context: Context,
    more: Mapping[str, Any],
) -> RecordDict:
    """Calls `act` on a message, and returns its answer or the name of its error."""
    trusting = False
    try:
        node = NodeConfig.of({**context.node_config, **more})
        trusting = node.trust_server
        return act(message.content, node, context)
    except Exception as error:  # a user's model or data can raise anything
        _LOG.exception("This client does not take part.")
        told = trusting or isinstance(error, RefusedError)
        return pack({}, {"failed": type(error).__name__ if told else FAILED})


def _describe(content: RecordDict, node: NodeConfig, context: Context) -> RecordDict:
    text, settings = describe_request(content)
    node.check(settings)
    data = _task(text).client_data(node.number, settings.clients)
    return pack({}, {"client": node.number, "examples": len(data)})  # type: ignore[arg-type]


def _train(content: RecordDict, node: NodeConfig, context: Context) -> RecordDict:
    request = TrainRequest.of(content)
    settings, now = request.settings, request.now
    node.check(settings)
    node.check_noise(request.noise_multiplier)
    with node_ledger(node.ledger, context.state) as kept:
        kept.begin(context.run_id, now.number)
        task = _task(request.text)
        # Nothing of a client outlives its message, except the outcome of its probes if the process lives on.
        client = make_client(settings, task, node.number, request.noise_multiplier)
        if len(client.dataset) != request.examples:  # type: ignore[arg-type]
            raise RefusedError(
                f"This client has {len(client.dataset)} examples now, and had {request.examples} when the "  # type: ignore[arg-type]
                "training began, which it is charged for. Continue with the same examples, or start again."
            )
        client.seed = client_seed(settings.seed, node.number, now.number)
        for name, record in context.state.array_records.items():
            if name.startswith(_MEMORY):
                client.memory[name.removeprefix(_MEMORY)] = unpacked_arrays(record)
        algorithm = settings.make_algorithm(task.make_blocks(client.model))
        _check_records(request, algorithm, client)
        before, step = kept.ledger, _step(settings, client)
        planned = before.copy()
        if step is not None:
            planned.record(step, now.local_steps)
            node.check_budget(planned, step)
        kept.write(planned)
        try:
            with _PROBES.lent((context.run_id, node.number, request.text), client):
                update = algorithm.train(client, request.records, now)
        finally:
            if step is not None and _is_covered(client.ledger, step, now.local_steps):
                kept.write(_joined(before, client.ledger))
            elif step is not None:
                kept.write(_joined(planned, client.ledger))
                raise RuntimeError("The releases of this round cost more than was charged for it.")
    for name, arrays in client.memory.items():
        context.state[_MEMORY + name] = packed_arrays(arrays)
    return pack(update, {})


@functools.lru_cache(maxsize=1)
def _task(settings: str) -> Task:
    return make_task(FederatedSettings.from_json(settings))


def _check_records(request: TrainRequest, algorithm: Algorithm, client: Client) -> None:
    """Refuses a state that does not fit this node's model."""
    expected = algorithm.broadcast(algorithm.start(client.model))
    try:
        for name, arrays in check_names("records", request.records, expected).items():
            check_arrays(name, arrays, expected[name], non_negative=name in algorithm.non_negative)
    except ValueError as error:
        raise RefusedError(f"The request does not fit the model of this node. {error}") from error


def _step(settings: FederatedSettings, client: Client) -> dp_accounting.PoissonSampledDpEvent | None:
    """Returns the event of a local step, for the node's records; None if the server is trusted with them."""
    if client.noise_multiplier == 0:
        return None
    size = len(client.dataset)  # type: ignore[arg-type]
    if settings.batch_size > size:
        raise RefusedError(f"The run has batch_size={settings.batch_size}, and the node {size} examples.")
    event = settings.plan([size]).event(client.noise_multiplier)
    assert isinstance(event, dp_accounting.PoissonSampledDpEvent)
    return event


def _is_covered(made: Ledger, step: dp_accounting.PoissonSampledDpEvent, count: int) -> bool:
    """Tells whether releases cost at most `count` steps of the event that was charged."""
    for event, times in made.entries:
        if not isinstance(event, dp_accounting.PoissonSampledDpEvent):
            return False
        inner = event.event
        parts: Sequence[dp_accounting.DpEvent] = (
            inner.events if isinstance(inner, dp_accounting.ComposedDpEvent) else [inner]
        )
        if not all(isinstance(part, dp_accounting.GaussianDpEvent) for part in parts):
            return False
        noise = joint_noise_multiplier([part.noise_multiplier for part in parts])
        if event.sampling_probability > step.sampling_probability * (1 + 1e-12):
            return False
        if noise < step.event.noise_multiplier * (1 - 1e-12):
            return False
        count -= times
    return count >= 0


def _joined(before: Ledger, made: Ledger) -> Ledger:
    joined = before.copy()
    for event, count in made.entries:
        joined.record(event, count)
    return joined
