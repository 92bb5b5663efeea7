"""Small graphs with awkward shapes, and their neighbours: the same graph with one node removed or changed."""

import torch

from adamas.graphs import Graph

FEATURES = 3


def pairs(*edges):
    return torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T


def both_ways(edges):
    return torch.cat([edges, edges.flip(0)], 1)


def random_edges(nodes, count, seed):
    return torch.randint(0, nodes, (2, count), generator=torch.Generator().manual_seed(seed))


def star(leaves):
    return both_ways(torch.stack([torch.zeros(leaves, dtype=torch.int64), torch.arange(1, leaves + 1)]))


EDGES = {
    "directed": (12, random_edges(12, 40, 0)),
    "undirected": (12, both_ways(random_edges(12, 20, 1))),
    "dense": (9, both_ways(random_edges(9, 60, 2))),
    "hub": (12, torch.cat([star(11), both_ways(random_edges(12, 10, 3))], 1)),
    "hub that only sends": (12, star(11)[:, :11]),
    "hub that only receives": (12, star(11)[:, 11:]),
    "no edges": (6, torch.zeros(2, 0, dtype=torch.int64)),
    "isolated node": (8, both_ways(random_edges(7, 15, 4))),
    "loops": (8, torch.cat([random_edges(8, 20, 5), torch.arange(8).repeat(2, 1)], 1)),
    "duplicates": (8, random_edges(8, 20, 6).repeat(1, 3)),
    "path": (8, both_ways(torch.stack([torch.arange(7), torch.arange(1, 8)]))),
}
"""Name -> number of nodes, and edges."""


def graph_of(name, *, training=0.7, seed=0):
    nodes, edges = EDGES[name]
    generator = torch.Generator().manual_seed(seed)
    train = torch.rand(nodes, generator=generator) < training
    train[0] = True
    features = torch.randn(nodes, FEATURES, generator=generator)
    return Graph(features, torch.randint(0, 2, (nodes,), generator=generator), edges, train)


def with_other_record(graph, node, *, edges=None):
    """The graph with other features and another label of a node; None keeps its edges."""
    features, labels = graph.features.clone(), graph.labels.clone()
    features[node] = -10 * features[node] - 1
    labels[node] = 1 - labels[node]
    return Graph(features, labels, graph.edges if edges is None else edges, graph.train)


def without_list(graph, node):
    """The graph without the record of a node: other features and label, and none of the edges on its list."""
    return with_other_record(graph, node, edges=graph.edges[:, graph.edges[0] != node])


def with_other_list(graph, node):
    """The graph in which a node has another record, and sends to everybody that it did not send to."""
    sent = set(graph.edges[1, graph.edges[0] == node].tolist())
    others = [u for u in range(graph.nodes) if u not in sent and u != node]
    added = torch.tensor([[node] * len(others), others], dtype=torch.int64)
    return with_other_record(graph, node, edges=torch.cat([graph.edges[:, graph.edges[0] != node], added], 1))


def without_node(graph, node):
    """The graph without a node, and without all edges from and to it."""
    return with_other_record(graph, node, edges=graph.edges[:, (graph.edges != node).all(0)])
