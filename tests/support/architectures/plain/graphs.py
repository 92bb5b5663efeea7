"""Graphs and point clouds."""

from typing import Any

import torch
from torch import Tensor

from tests.support.architectures.plain.parts import head, plain, sequence, square
from tests.support.architectures.registry import T, register


def graph(m: Any, x: Tensor, edges: Tensor) -> Tensor:
    """Joins the graphs to one large graph: folds nodes into the batch, and offsets the edges."""
    n, nodes, _ = x.shape
    offset = torch.arange(n).view(-1, 1, 1) * nodes
    source, target = (edges + offset).permute(2, 0, 1).flatten(1)
    h = x.flatten(0, 1)
    for layer in (m.first, m.second):
        h = torch.relu(layer(h))
        h = h + torch.zeros_like(h).index_add(0, target, h[source])
    return m.head(h.view(n, nodes, -1).mean(1))


def segments(m: Any, x: Tensor, edges: Tensor) -> Tensor:
    """Does the same with `scatter_add`, and averages by the number of the graph."""
    n, nodes, _ = x.shape
    offset = torch.arange(n).view(-1, 1, 1) * nodes
    source, target = (edges + offset).permute(2, 0, 1).flatten(1)
    h = torch.relu(m.first(x.flatten(0, 1)))
    h = h.scatter_add(0, target.unsqueeze(1).expand(-1, h.shape[1]), h[source])
    h = torch.relu(m.second(h))
    owner = torch.arange(n).repeat_interleave(nodes)
    return m.head(torch.zeros(n, 8, dtype=h.dtype).index_add(0, owner, h) / nodes)


def point_cloud(m: Any, x: Tensor) -> Tensor:
    """Gathers the nearest neighbours within each cloud."""
    near = torch.cdist(x, x).topk(3, largest=False).indices
    rows = torch.arange(len(x)).view(-1, 1, 1)
    h = torch.relu(m.first(x[rows, near] - x.unsqueeze(2))).amax(2)
    return m.head(torch.tanh(m.second(h)).amax(1))


def graph_parts() -> dict[str, Any]:
    return dict(first=square(), second=square(), head=head())


def edges(n: int) -> Tensor:
    return torch.randint(T, (n, 7, 2))


def register_graphs() -> None:
    """Adds graphs and point clouds."""
    register("graphs as one graph", plain(graph, graph_parts, sequence, edges))
    register("graphs as one graph, scatter_add", plain(segments, graph_parts, sequence, edges))
    register("point cloud", plain(point_cloud, graph_parts, sequence))
