"""Divides the examples of a data set among clients."""

import numpy as np

from adamas import _validate
from adamas._streams import Seed

_TRIES = 1000


def dirichlet_partition(
    labels: np.ndarray, *, clients: int, alpha: float, seed: int, least: int = 1, equal_sizes: bool = False
) -> list[np.ndarray]:
    """Gives each client a share of every class, drawn from a Dirichlet distribution.

    By default the examples of each class are divided among the clients, so that clients differ in size. With
    `equal_sizes` each client draws a mixture of classes, and all clients have the same size, after T.-M. H.
    Hsu, H. Qi and M. Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification", 2019, arXiv:1909.06335. With few classes only this gives every client enough examples.
    The last clients take what is left.

    Args:
        labels: The class of each example.
        clients: Number of clients.
        alpha: Concentration: with 0.1 a client has few classes, with 100 all classes in equal shares.
        seed: Seed of the draw, which is public.
        least: Minimum number of examples of a client; partitions with fewer are drawn again.
        equal_sizes: Whether clients have the same size, up to one example, with mixtures of classes.

    Returns:
        For each client the indices of its examples, in order. Every example belongs to one client.

    Raises:
        ValueError: If none of many draws gives every client enough examples.

    Example:
        >>> parts = dirichlet_partition(np.repeat([0, 1], 50), clients=4, alpha=0.5, seed=0, least=5)
        >>> sum(map(len, parts)), min(map(len, parts)) >= 5
        (100, True)
    """
    _validate.count(clients=clients, least=least)
    _validate.positive(alpha=alpha)
    labels = np.asarray(labels)
    if labels.ndim != 1 or clients * least > len(labels):
        raise ValueError(
            f"Expected labels of at least clients * least = {clients * least} examples, got shape "
            f"{labels.shape}. Take fewer clients, or a lower least."
        )
    generator = Seed(seed).generator("partition", clients)
    places = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    if equal_sizes:
        return _mixtures(places, clients, alpha, generator)
    for _ in range(_TRIES):
        result = _shares(places, clients, alpha, generator)
        if min(map(len, result)) >= least:
            return result
    raise ValueError(
        f"Found no draw of {_TRIES} with least={least} examples for each of {clients} clients at "
        f"alpha={alpha:g}. Lower least or clients, raise alpha, or set equal_sizes."
    )


def _shares(
    places: list[np.ndarray], clients: int, alpha: float, generator: np.random.Generator
) -> list[np.ndarray]:
    """Divides each class among the clients, by shares from a Dirichlet distribution."""
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for members in places:
        shuffled = generator.permutation(members)
        shares = generator.dirichlet(np.full(clients, alpha))
        cuts = np.round(np.cumsum(shares)[:-1] * len(shuffled)).astype(int)
        for part, piece in zip(parts, np.split(shuffled, cuts), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def _mixtures(
    places: list[np.ndarray], clients: int, alpha: float, generator: np.random.Generator
) -> list[np.ndarray]:
    """Fills one client after the other with a mixture of the classes that have examples left."""
    shuffled = [generator.permutation(members) for members in places]
    left = np.array([len(members) for members in places])
    size, larger = divmod(left.sum(), clients)
    result = []
    for client in range(clients):
        wanted = size + (client < larger)
        mixture = generator.dirichlet(np.full(len(places), alpha))
        taken = np.zeros_like(left)
        while taken.sum() < wanted:
            weights = np.where(left > taken, mixture, 0.0)
            if weights.sum() == 0:
                weights = (left - taken).astype(float)
            drawn = generator.multinomial(wanted - taken.sum(), weights / weights.sum())
            taken = np.minimum(taken + drawn, left)
        pieces = [members[rest - n : rest] for members, rest, n in zip(shuffled, left, taken, strict=True)]
        result.append(np.sort(np.concatenate(pieces)))
        left = left - taken
    return result
