"""Simulates all clients in the server's process, one after another: the reference for other transports."""

import logging
from collections.abc import Sequence

from adamas.federated.algorithm import Round
from adamas.federated.arrays import Records
from adamas.federated.client import Client
from adamas.federated.rounds import Answers, client_seed
from adamas.federated.server import Server

_LOG = logging.getLogger("adamas.federated")


class InProcess:
    """A transport within one process: it calls the clients directly.

    Args:
        server: The training.
        clients: All clients.
        seed: Seed from which the clients' seeds are derived; None lets each client draw secret ones.

    Raises:
        ValueError: If a client's releases would not be those that the server charges for.
    """

    def __init__(self, server: Server, clients: Sequence[Client], seed: int | None = None) -> None:
        self.algorithm, self.clients, self.seed = server.algorithm, clients, seed
        self._secret = server.secret
        for number, client in enumerate(clients if server.plan.unit == "record" else ()):
            for name in ("noise_multiplier", "batch_size"):
                mine, charged = getattr(client, name), getattr(server, name)
                if mine != charged:
                    raise ValueError(
                        f"Expected client {number} with {name}={charged}, as the server charges, got {mine}."
                    )

    def sizes(self) -> list[int]:
        """See `Transport.sizes`."""
        return [len(client.dataset) for client in self.clients]  # type: ignore[arg-type]

    def ask(self, clients: Sequence[int], records: Records, round: Round) -> Answers:
        """See `Transport.ask`.

        If a client's training raises, its answer is the name of the error: the text could contain examples.
        """
        answers: dict[int, Records | str] = {}
        for number in clients:
            client = self.clients[number]
            client.seed = client_seed(self.seed, number, round.number)
            try:
                answers[number] = self.algorithm.train(client, records, round)
            except Exception as error:  # whatever a user's model or data raise
                name = "A client" if self._secret else f"Client {number}"
                _LOG.warning("%s left round %d out.", name, round.number, exc_info=True)
                answers[number] = type(error).__name__
        return answers
