"""The server's side on Flower.

The configuration of a run has the names of `FederatedSettings` with hyphens, the name of an option after a
dot; and `out`, the folder of results. It may have `timeout`, the seconds that clients have to answer.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp

from adamas.federated.algorithm import Round
from adamas.federated.arrays import Records
from adamas.federated.checks import check_names, check_whole, error_name
from adamas.federated.flower.messages import pack, unpack
from adamas.federated.rounds import Answers
from adamas.federated.server import Server
from adamas.federated.settings import FederatedSettings
from adamas.federated.task import make_task
from adamas.federated.training import Line, train

TIMEOUT = 3600.0
"""Default number of seconds that clients have to answer."""

_LOG = logging.getLogger("adamas.federated")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the training that the run's configuration describes."""
    config = dict(context.run_config)
    if "out" not in config:
        raise ValueError("Expected out, the folder of results, in the configuration of the run.")
    out, timeout = Path(str(config.pop("out"))), float(config.pop("timeout", TIMEOUT))
    serve(grid, FederatedSettings.from_flat(config), out, timeout=timeout)


def serve(
    grid: Grid,
    settings: FederatedSettings,
    out: Path,
    *,
    timeout: float = TIMEOUT,
    progress: Callable[[Line], None] = lambda _: None,
) -> Line:
    """Runs a training with the nodes of a grid as clients. See `adamas.federated.training.train`.

    Args:
        grid: Flower's grid.
        settings: The training.
        out: The folder of its files.
        timeout: Seconds that clients have to answer, and nodes to connect.
        progress: Called with each round's line.
    """
    nodes = Nodes(grid, settings, timeout=timeout)

    def connect(server: Server) -> OverGrid:
        return OverGrid(grid, settings, nodes, server.noise_multiplier, timeout=timeout)

    return train(settings, make_task(settings), out, sizes=nodes.sizes, connect=connect, progress=progress)


class Nodes:
    """Finds the clients among the nodes of a grid.

    A node that cannot take part, or whose answer is invalid, is left out. The training begins without it
    after `timeout` seconds.

    Args:
        grid: Flower's grid.
        settings: The training.
        timeout: Seconds that nodes have to connect.

    Attributes:
        ids: Client -> node.
        sizes: Number of examples of each client; 0 for one that is left out.

    Raises:
        RuntimeError: If there are fewer nodes than clients, or none of them can take part.
    """

    def __init__(self, grid: Grid, settings: FederatedSettings, *, timeout: float) -> None:
        self._grid, self._settings = grid, settings
        self.ids: dict[int, int] = {}
        self._examples: dict[int, int] = {}
        self._left_out: dict[int, str] = {}
        end = time.monotonic() + timeout
        while True:
            self._greet(max(1.0, end - time.monotonic()))
            missing = sorted(set(range(settings.clients)) - self.ids.keys())
            if not missing:
                break
            if time.monotonic() > end:
                self._begin_without(missing, timeout)
                break
            time.sleep(1)
        self.sizes = [self._examples[client] for client in range(settings.clients)]

    def refresh(self, timeout: float) -> None:
        """Finds clients again whose nodes have restarted under another id."""
        present = set(self._grid.get_node_ids())
        if any(node not in present for node in self.ids.values()):
            self._greet(timeout, present)

    def _begin_without(self, missing: list[int], timeout: float) -> None:
        """Leaves clients out, if their nodes have connected and cannot take part."""
        why = "".join(f" Node {node}: {reason}." for node, reason in sorted(self._left_out.items()))
        if not self.ids or len(missing) > len(self._left_out):
            raise RuntimeError(
                f"Expected clients={self._settings.clients} nodes, but these clients did not come up in "
                f"{timeout:g} seconds: {missing}.{why}"
            )
        _LOG.warning("The training begins without clients %s.%s", missing, why)
        self._examples |= dict.fromkeys(missing, 0)

    def _greet(self, timeout: float, present: set[int] | None = None) -> None:
        """Asks unknown nodes which client they are."""
        present = set(self._grid.get_node_ids()) if present is None else present
        new = present - set(self.ids.values())
        words = {"settings": self._settings.to_json()}
        messages = [Message(pack({}, words), node, MessageType.QUERY) for node in sorted(new)]
        for reply in self._grid.send_and_receive(messages, timeout=timeout):
            node = reply.metadata.src_node_id
            if node not in new:  # Flower itself, about a node that it cannot reach
                continue
            new.remove(node)
            try:
                client, examples = _description(reply, self._settings)
                if self.ids.get(client) in present:
                    raise ValueError(f"another node has partition-id={client}")
                if examples != self._examples.setdefault(client, examples):
                    raise ValueError("another number of examples")
            except ValueError as error:
                self._left_out[node] = str(error)
                continue
            self._left_out.pop(node, None)
            self.ids[client] = node


def _description(reply: Message, settings: FederatedSettings) -> tuple[int, int]:
    """Reads which client a node is, and its number of examples.

    Raises:
        ValueError: If the reply is invalid, or the node cannot take part.
    """
    records, words = _content(reply)
    check_names("records", records, ())
    check_names("answer", words, ("client", "examples"))
    client = check_whole("client", words["client"], most=settings.clients - 1)
    # More examples than 1 / delta would make the training refuse its delta.
    most = math.ceil(1 / settings.delta) - 1 if settings.unit == "record" else 2**53
    return client, check_whole("examples", words["examples"], least=settings.batch_size, most=most)


def _content(reply: Message) -> tuple[Records, dict[str, Any]]:
    """Reads the content of a reply.

    Raises:
        ValueError: If the reply is an error, or cannot be read.
    """
    if reply.has_error():
        raise ValueError(f"Flower's error {reply.error.code}")
    try:
        records, words = unpack(reply.content)
    except Exception as error:  # a malformed message can raise anything
        raise ValueError(f"an answer that cannot be read: {type(error).__name__}") from error
    if "failed" in words:
        raise ValueError(error_name(words["failed"]))
    return records, words


class OverGrid:
    """Flower's grid as a transport.

    Args:
        grid: Flower's grid.
        settings: The training.
        nodes: Its clients.
        noise_multiplier: Noise multiplier of their releases.
        timeout: Seconds that they have to answer.
    """

    def __init__(
        self,
        grid: Grid,
        settings: FederatedSettings,
        nodes: Nodes,
        noise_multiplier: float,
        *,
        timeout: float,
    ) -> None:
        self._grid, self._nodes, self._timeout = grid, nodes, timeout
        self._words = {"settings": settings.to_json(), "noise_multiplier": noise_multiplier}

    def sizes(self) -> list[int]:
        """See `Transport.sizes`."""
        return self._nodes.sizes

    def ask(self, clients: Sequence[int], records: Records, round: Round) -> Answers:
        """See `Transport.ask`. A node that has disconnected is asked all the same, and does not answer."""
        self._nodes.refresh(self._timeout)
        ids = self._nodes.ids
        messages = [
            Message(
                pack(records, self._words | {"round": asdict(round), "examples": self._nodes.sizes[client]}),
                ids[client],
                MessageType.TRAIN,
                group_id=str(round.number),
            )
            for client in clients
        ]
        by_node = {ids[client]: client for client in clients}
        answers: dict[int, Records | str] = {}
        for reply in self._grid.send_and_receive(messages, timeout=self._timeout):
            client = by_node.get(reply.metadata.src_node_id)
            if client is None:  # Flower itself, about a node that it cannot reach
                continue
            if client in answers:
                continue
            try:
                answers[client], words = _content(reply)
                check_names("answer", words, ())
            except ValueError as error:
                answers[client] = str(error)
        return answers
