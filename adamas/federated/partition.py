"""How the examples of a data set are spread over clients."""

import numpy as np

from adamas import _validate
from adamas._streams import Seed

_TRIES = 1000


def dirichlet_partition(
    labels: np.ndarray, *, clients: int, alpha: float, seed: int, least: int = 1
) -> list[np.ndarray]:
    """Gives each client a share of every class, drawn from a Dirichlet distribution.

    Args:
        labels: The class of each example.
        clients: How many.
        alpha: Concentration: 0.1 gives a client few classes, 100 all of them alike.
        seed: Of the draw, which is public.
        least: The fewest examples of a client; draws with fewer are drawn again.

    Returns:
        For each client the places of its examples, in order. Every example belongs to one client.

    Raises:
        ValueError: If no draw of many has enough examples for each client.

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
    for _ in range(_TRIES):
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for members in places:
            shuffled = generator.permutation(members)
            shares = generator.dirichlet(np.full(clients, alpha))
            cuts = np.round(np.cumsum(shares)[:-1] * len(shuffled)).astype(int)
            for part, piece in zip(parts, np.split(shuffled, cuts), strict=True):
                part.append(piece)
        result = [np.sort(np.concatenate(part)) for part in parts]
        if min(map(len, result)) >= least:
            return result
    raise ValueError(
        f"Found no draw of {_TRIES} with least={least} examples for each of {clients} clients at "
        f"alpha={alpha:g}. Lower least or clients, or raise alpha."
    )
