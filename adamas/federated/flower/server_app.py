"""The server's side on Flower.

The configuration of a run has the names of `FederatedSettings` with hyphens, an option's name after a dot;
and `out`, the folder of results. It may have `timeout`, the seconds that clients have to answer.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp

from adamas.federated.algorithm import Records, Round
from adamas.federated.flower.messages import pack, unpack
from adamas.federated.server import Server
from adamas.federated.settings import FederatedSettings
from adamas.federated.simulation import Answers
from adamas.federated.task import make_task
from adamas.federated.training import Line, train

TIMEOUT = 3600.0
"""Seconds that clients have to answer, if nothing is said."""

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
    """Runs a training with the nodes of a grid as clients; see `adamas.federated.training.train`.

    Args:
        grid: Flower's.
        settings: The training.
        out: The folder of its files.
        timeout: Seconds that clients have to answer, and nodes to come up.
        progress: Called with each round's line.
    """
    nodes = Nodes(grid, settings, timeout=timeout)

    def connect(server: Server) -> OverGrid:
        return OverGrid(grid, settings, nodes, server.noise_multiplier, timeout=timeout)

    return train(settings, make_task(settings), out, sizes=nodes.sizes, connect=connect, progress=progress)


class Nodes:
    """Which node of a grid is which client.

    Args:
        grid: Flower's.
        settings: The training.
        timeout: Seconds that nodes have to come up.

    Attributes:
        ids: Client -> node.
        sizes: The number of examples of each client.

    Raises:
        RuntimeError: If not all clients come up, or two nodes are the same client.
    """

    def __init__(self, grid: Grid, settings: FederatedSettings, *, timeout: float) -> None:
        self._grid, self._words = grid, {"settings": settings.to_json()}
        self.ids: dict[int, int] = {}
        self._examples: dict[int, int] = {}
        self._failed: dict[int, str] = {}
        end = time.monotonic() + timeout
        while True:
            self._greet(max(1.0, end - time.monotonic()))
            missing = sorted(set(range(settings.clients)) - self.ids.keys())
            if not missing:
                break
            if time.monotonic() > end:
                why = f" Nodes that answered with an error: {self._failed}." if self._failed else ""
                raise RuntimeError(
                    f"Expected clients={settings.clients} nodes, but these clients did not come up in "
                    f"{timeout:g} seconds: {missing}.{why}"
                )
            time.sleep(1)
        self.sizes = [self._examples[client] for client in range(settings.clients)]

    def refresh(self, timeout: float) -> None:
        """Finds nodes again that have started anew, with another number."""
        present = set(self._grid.get_node_ids())
        if any(node not in present for node in self.ids.values()):
            self._greet(timeout, present)

    def _greet(self, timeout: float, present: set[int] | None = None) -> None:
        """Asks the nodes that are not known who they are."""
        present = set(self._grid.get_node_ids()) if present is None else present
        new = present - set(self.ids.values())
        messages = [Message(pack({}, self._words), node, MessageType.QUERY) for node in sorted(new)]
        for reply in self._grid.send_and_receive(messages, timeout=timeout):
            node = reply.metadata.src_node_id
            said = _words_of(reply)
            if "client" not in said:
                self._failed[node] = said.get("failed", "an answer that cannot be read")
                continue
            client, examples = int(said["client"]), int(said["examples"])
            if self.ids.get(client) in present:
                raise RuntimeError(f"Expected one node with partition-id={client}, got two.")
            if examples != self._examples.setdefault(client, examples):
                self._failed[node] = "another number of examples"
                continue
            self.ids[client] = node


def _words_of(reply: Message) -> dict[str, Any]:
    if reply.has_error():
        return {"failed": f"Flower's error {reply.error.code}"}
    try:
        return unpack(reply.content)[1]
    except (KeyError, ValueError):
        return {}


class OverGrid:
    """Flower's grid as a transport.

    Args:
        grid: Flower's.
        settings: The training.
        nodes: Its clients.
        noise_multiplier: Of their releases.
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
        """See `Transport.ask`. A node that went away is asked all the same, and does not answer."""
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
            if client is None:  # Flower itself, about a node that it does not reach
                continue
            said = _words_of(reply)
            if "failed" in said or reply.has_error():
                answers[client] = str(said.get("failed"))
                continue
            try:
                answers[client] = unpack(reply.content)[0]
            except (KeyError, ValueError, TypeError) as error:
                answers[client] = f"an answer that cannot be read: {type(error).__name__}"
        return answers
