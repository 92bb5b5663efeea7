"""The server's side on Flower.

The configuration of a run has the names of `FederatedSettings` with hyphens, an option's name after a dot;
and `out`, the folder of results. It may have `timeout`, the seconds that clients have to answer.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

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
        found: dict[int, tuple[int, int]] = {}
        words = {"settings": settings.to_json()}
        end = time.monotonic() + timeout
        while len(found) < settings.clients:
            known = {node for node, _ in found.values()}
            new = [node for node in grid.get_node_ids() if node not in known]
            messages = [Message(pack({}, words), node, MessageType.QUERY) for node in new]
            for reply in grid.send_and_receive(messages, timeout=max(1.0, end - time.monotonic())):
                node = reply.metadata.src_node_id
                if reply.has_error():
                    _LOG.warning("Node %d cannot say who it is: error %d.", node, reply.error.code)
                    continue
                _, said = unpack(reply.content)
                if said["client"] in found:
                    raise RuntimeError(f"Expected one node with partition-id={said['client']}, got two.")
                found[said["client"]] = (node, said["examples"])
            missing = sorted(set(range(settings.clients)) - found.keys())
            if missing and time.monotonic() > end:
                raise RuntimeError(
                    f"Expected clients={settings.clients} nodes, but these clients did not come up in "
                    f"{timeout:g} seconds: {missing}."
                )
            if missing:
                time.sleep(1)
        self.ids = {client: node for client, (node, _) in found.items()}
        self.sizes = [found[client][1] for client in range(settings.clients)]


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
        """See `Transport.ask`."""
        words = self._words | {"round": asdict(round)}
        ids = self._nodes.ids
        messages = [
            Message(pack(records, words), ids[client], MessageType.TRAIN, group_id=str(round.number))
            for client in clients
        ]
        by_node = {ids[client]: client for client in clients}
        answers: dict[int, Records | str] = {}
        for reply in self._grid.send_and_receive(messages, timeout=self._timeout):
            client = by_node[reply.metadata.src_node_id]
            if reply.has_error():
                answers[client] = f"Flower's error {reply.error.code}"
                continue
            update, said = unpack(reply.content)
            answers[client] = str(said["failed"]) if "failed" in said else update
        return answers
