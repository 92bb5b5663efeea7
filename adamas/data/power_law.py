"""A made graph with power-law degrees, for benchmarks where ogbn-arxiv cannot be had.

References:
    Fan Chung, Linyuan Lu. "Connected Components in Random Graphs with Given Expected Degree Sequences."
    Annals of Combinatorics, 2002. doi:10.1007/PL00012580.
"""

import math

import numpy as np
import torch

from adamas import _validate
from adamas._streams import Seed
from adamas.data.graph import GraphData, undirected

_ARXIV = (169_343, 90_941, 29_799)  # nodes of ogbn-arxiv, and how many are for training and validation
_EXPONENT = 2.5  # of the power law: the largest degree is then about 8,000, and 13,161 in ogbn-arxiv
_WITHIN = 0.6  # share of edges that stay within a community
_NOISE = 3.0  # features have uniform noise in [-3, 3] around centers in [-1/2, 1/2]
_NEIGHBOURS = 4.0  # weight of the neighbours in the label, where the noise of the features has deviation 1


def power_law_graph(
    nodes: int = 169_343, edges: int = 1_166_243, features: int = 128, classes: int = 40, seed: int = 0
) -> GraphData:
    """Makes a graph of ogbn-arxiv's size and kind: few nodes have most edges, and neighbours are alike.

    Every node belongs to a community. Both ends of an edge are drawn with probabilities that fall off as a
    power law, and most edges stay within a community. The features of a node are a center of its community
    plus uniform noise. Its label is the class with the highest score, which adds up how close its features
    are to the class's center and how many of its neighbours are in the class's community. So features alone
    tell the label of some nodes, and neighbours tell more.

    Args:
        nodes: Number of nodes. Training, validation and test nodes have the shares of ogbn-arxiv.
        edges: Number of pairs of neighbours; `GraphData.edges` has both directions of each.
        features: Features of a node.
        classes: Number of classes, and of communities.
        seed: Seed of the graph, which is public.

    Raises:
        ValueError: If the nodes are too few for the edges or for the classes.

    Example:
        >>> graph = power_law_graph(nodes=1000, edges=5000, features=16, classes=4)
        >>> graph.edges.shape, graph.edges[0].bincount().max() > 10 * 5
        (torch.Size([2, 10000]), tensor(True))
        >>> len(graph.train_nodes), len(graph.validation_nodes), len(graph.test_nodes)
        (537, 176, 287)
    """
    _validate.count(nodes=nodes, edges=edges, features=features, classes=classes)
    if nodes < classes or edges * 10 > nodes * (nodes - 1) // 2:
        raise ValueError(
            f"Expected nodes={nodes} to be at least classes={classes}, and edges={edges} to be at most a "
            "tenth of all pairs of nodes. Take more nodes, or fewer edges and classes."
        )
    draw = Seed(seed).generator("power-law graph")
    community = draw.permutation(np.arange(nodes) % classes)
    pairs = _pairs(community, classes, edges, draw)
    centers = draw.random((classes, features), dtype=np.float32) - np.float32(0.5)
    x = _NOISE * (2 * draw.random((nodes, features), dtype=np.float32) - 1) + centers[community]
    scores = x @ centers.T / (_NOISE / math.sqrt(3) * math.sqrt(features / 12))
    scores += _NEIGHBOURS * _shares(pairs, community, classes)
    order = torch.from_numpy(draw.permutation(nodes))
    total, *shares = _ARXIV
    train, validation = (round(share * nodes / total) for share in shares)
    parts = order.tensor_split([train, train + validation])
    return GraphData.of(
        "power-law",
        torch.from_numpy(x),
        torch.from_numpy(scores.argmax(1)),
        undirected(torch.from_numpy(pairs)),
        (parts[0].sort().values, parts[1].sort().values, parts[2].sort().values),
        classes=classes,
    )


def _pairs(community: np.ndarray, classes: int, edges: int, draw: np.random.Generator) -> np.ndarray:
    """Draws different pairs of nodes, (2, edges), with the smaller number first."""
    nodes = len(community)
    weights = (1 + draw.permutation(nodes)) ** (-1 / (_EXPONENT - 1))
    order = np.argsort(community, kind="stable")
    sums = np.cumsum(weights[order])  # a community is an interval of these
    bounds = np.concatenate([[0.0], sums[np.cumsum(np.bincount(community, minlength=classes)) - 1]])

    def at(place: np.ndarray) -> np.ndarray:
        found: np.ndarray = order[np.minimum(np.searchsorted(sums, place, side="right"), nodes - 1)]
        return found

    keys = np.empty(0, dtype=np.int64)
    while len(keys) < edges:
        count = edges - len(keys) + 100
        first = at(sums[-1] * draw.random(count))
        within = draw.random(count) < _WITHIN
        low = np.where(within, bounds[community[first]], 0.0)
        high = np.where(within, bounds[community[first] + 1], sums[-1])
        second = at(low + (high - low) * draw.random(count))
        new = np.minimum(first, second) * nodes + np.maximum(first, second)
        new = new[first != second]
        keys = np.concatenate([keys, new[: edges - len(keys)]])
        keys = torch.unique(torch.from_numpy(keys)).numpy()  # NumPy's takes many times as long
    return np.stack([keys // nodes, keys % nodes])


def _shares(pairs: np.ndarray, community: np.ndarray, classes: int) -> np.ndarray:
    """Returns which share of each node's neighbours is in each community, (nodes, classes)."""
    nodes = len(community)
    first, second = np.concatenate([pairs, pairs[::-1]], axis=1)
    counts = np.bincount(first * classes + community[second], minlength=nodes * classes)
    counts = counts.reshape(nodes, classes)
    shares: np.ndarray = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return shares
