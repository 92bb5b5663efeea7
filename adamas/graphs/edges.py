r"""Bounds the out-degree of a graph: how many nodes receive the messages of one node.

A node v chooses among *its own list* of edges v -> u, with coins that depend on the seed, v and u only. So
changing the features, the label and the list of one node changes no choice of another node. That is exact,
for any graph, and what the privacy of a node needs.

    uniform     v keeps `max_degree` of its edges, chosen at random, or all if it has no more
    published   v keeps each edge with probability K/(2 d) if it has d of them, and none if more than K are
    left
                (Daigavane et al., 2021)

`published` keeps half as many edges at most.

No rule can do more. If edges that point *to* a node count as its own, removing the node shortens the lists of
others. A node with K + 1 edges that keeps K of them must then drop one for the sake of another, so its choice
changes; and a node can be on arbitrarily many lists. `max_in_degree` of `NodeTerms` bounds them.
"""

import numpy as np
import torch
from torch import Tensor

from adamas import _validate
from adamas._streams import Seed

CHOICES = ("uniform", "published")
"""Names of the ways to choose edges."""


def unique_edges(edges: Tensor, nodes: int) -> Tensor:
    """Drops loops and repetitions; returns the edges sorted by their ends."""
    sources, targets = edges[:, edges[0] != edges[1]]
    keys = torch.unique(sources * nodes + targets)
    return torch.stack([keys // nodes, keys % nodes])


def bounded_edges(edges: Tensor, max_degree: int, seed: int, choice: str = "uniform") -> Tensor:
    """Keeps at most `max_degree` edges of each source.

    Args:
        edges: Edges without loops and repetitions, (2, E).
        max_degree: K.
        seed: Seed of the coins. It may be public.
        choice: A name in `CHOICES`.

    Returns:
        The kept edges, sorted by target and then by coin.

    Example:
        >>> import torch
        >>> star = torch.stack([torch.zeros(5, dtype=torch.int64), torch.arange(1, 6)])
        >>> bounded_edges(star, 2, seed=0).shape
        torch.Size([2, 2])
    """
    _validate.count(max_degree=max_degree)
    _validate.one_of(CHOICES, choice=choice)
    coins = edge_coins(edges, seed)
    sources = edges[0].numpy()
    degrees = np.bincount(sources, minlength=1)
    if choice == "published":
        kept = coins < max_degree / (2 * degrees[sources])
        left = np.bincount(sources[kept], minlength=len(degrees))
        kept &= (left <= max_degree)[sources]
    else:
        order = np.lexsort((coins, sources))
        firsts = np.concatenate([[0], np.cumsum(degrees)])[:-1]
        kept = np.zeros(len(sources), dtype=bool)
        kept[order] = np.arange(len(sources)) - firsts[sources[order]] < max_degree
    chosen = np.flatnonzero(kept)
    chosen = chosen[np.lexsort((coins[chosen], edges[1].numpy()[chosen]))]
    return edges[:, torch.from_numpy(chosen)]


def edge_coins(edges: Tensor, seed: int) -> np.ndarray:
    """Computes a number in [0, 1) for each edge, which depends on the seed and its two ends alone."""
    first, second = (int(word) for word in Seed(seed).words("edges", count=2))
    with np.errstate(over="ignore"):
        mixed = _mixed(edges[0].numpy().astype(np.uint64) + np.uint64(first))
        mixed = _mixed(mixed ^ (edges[1].numpy().astype(np.uint64) + np.uint64(second << 32)))
    coins: np.ndarray = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return coins


def _mixed(x: np.ndarray) -> np.ndarray:
    """Scrambles 64-bit words: the finalizer of SplitMix64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    scrambled: np.ndarray = x ^ (x >> np.uint64(31))
    return scrambled
