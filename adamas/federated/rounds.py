"""Runs the rounds of a federated training: the loop that simulation and deployment share.

A `Transport` carries messages between the server and its clients. `InProcess` is one, Flower's grid is
another.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from adamas._streams import Seed
from adamas.federated.algorithm import Round
from adamas.federated.arrays import Records
from adamas.federated.server import NoAnswerError, RoundReport, Server

Answers: TypeAlias = Mapping[int, Records | str]
"""Client -> its update, or why there is none."""


class Transport(Protocol):
    """Carries the server's state to clients, and their answers back."""

    def sizes(self) -> list[int]:
        """Returns the number of examples of each client."""

    def ask(self, clients: Sequence[int], records: Records, round: Round) -> Answers:
        """Asks clients to train for a round, and returns their answers."""


def run_rounds(
    server: Server,
    transport: Transport,
    *,
    opened: Callable[[], None] = lambda: None,
    closed: Callable[[RoundReport], None] = lambda _: None,
) -> None:
    """Runs the remaining rounds.

    Args:
        server: The training.
        transport: Reaches its clients.
        opened: Called after a round was opened and charged, before any client is asked.
        closed: Called after each round, even one without an update.

    Raises:
        NoAnswerError: If all clients were asked since the last update and none sent a usable one, or if no
            round had one. Any other round without a usable update is lost, and the training continues.

    Example:
        >>> import torch
        >>> from torch.nn import functional as F
        >>> from torch.utils.data import TensorDataset
        >>> from adamas.federated import Client, FedAdamW, InProcess, Plan, Server, run_rounds
        >>> def loss(model, batch):
        ...     return F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        >>> parts = [TensorDataset(torch.randn(n, 2), torch.randint(2, (n,))) for n in (50, 60, 70, 80)]
        >>> algorithm = FedAdamW(lr=0.01)
        >>> plan = Plan(rounds=3, local_steps=5, sampling_rate=10 / 50, delta=1e-3, accountant="rdp")
        >>> noise = plan.noise_multiplier(epsilon=8.0)
        >>> server = Server(algorithm, torch.nn.Linear(2, 2), sizes=[len(part) for part in parts], plan=plan,
        ...                 batch_size=10, participation=0.5, noise_multiplier=noise)
        >>> clients = [Client(torch.nn.Linear(2, 2), part, loss, batch_size=10, noise_multiplier=noise,
        ...                   clip_norm=1.0, delta=1e-3) for part in parts]
        >>> run_rounds(server, InProcess(server, clients))
        >>> server.round, 0 < server.epsilon() <= 8.0
        (3, True)
    """
    if transport.sizes() != list(server.sizes):
        raise ValueError(f"Expected clients with {list(server.sizes)} examples, got {transport.sizes()}.")
    silent: set[int] = set()  # clients asked since the last update
    while len(server):
        clients, records = server.open_round()
        opened()
        lost = None
        try:
            report = server.close_round(transport.ask(clients, records, server.now))
        except NoAnswerError as error:
            report, lost = error.report, error
        silent = set() if report.answered else silent | set(clients)
        if silent >= set(server.present) or (lost and not len(server) and server.lost == server.round):
            raise lost or NoAnswerError(
                "All clients were asked, and none gave an update that can be used. Their logs say more.",
                report,
            )
        closed(report)


def client_seed(seed: int | None, client: int, round: int) -> int | None:
    """Derives the seed of a client's round from the training's seed."""
    if seed is None:
        return None
    words = Seed(seed).words("client", client, round, count=8)
    return int.from_bytes(words.tobytes(), "little")
