"""A graph of nodes with features and labels."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes with features and labels, the edges between them, and which nodes train.

    Attributes:
        features: Features of all nodes, (N, F).
        labels: Labels of all nodes, (N,) whole numbers. Only those of training nodes are read for training.
        edges: Pairs of nodes, (2, E): `edges[:, i] = (v, u)` sends the features of v to u, as in `edge_index`
            of PyTorch Geometric. An undirected graph has each edge in both directions. Loops and repetitions
            do not count.
        train: Which nodes are training nodes, (N,) of bool.

    Example:
        >>> import torch
        >>> from adamas.graphs import Graph
        >>> graph = Graph(torch.eye(3), torch.tensor([0, 1, 0]), torch.tensor([[0, 1], [1, 0]]),
        ...               torch.tensor([True, True, False]))
        >>> graph.nodes, graph.train_nodes.tolist()
        (3, [0, 1])
    """

    features: Tensor
    labels: Tensor
    edges: Tensor
    train: Tensor

    def __post_init__(self) -> None:
        for name in ("features", "labels", "edges", "train"):
            if not isinstance(getattr(self, name), Tensor):
                raise TypeError(f"Expected {name} to be a tensor, got {type(getattr(self, name)).__name__}.")
        for name in ("features", "labels", "edges", "train"):
            value = getattr(self, name)
            if value.layout != torch.strided:
                raise ValueError(f"Expected {name} to be a dense tensor. Convert it with .to_dense().")
            if value.device.type != "cpu":
                raise ValueError(
                    f"Expected {name} on the device cpu, got {value.device}. Move the graph with .cpu(): "
                    "batches are moved to the model's device."
                )
        if self.features.dim() != 2 or not self.features.is_floating_point():
            raise ValueError(
                f"Expected features of shape (nodes, features) with floating-point numbers, got "
                f"{tuple(self.features.shape)} of {self.features.dtype}. Convert them with .float()."
            )
        n = self.nodes
        if tuple(self.labels.shape) != (n,) or self.labels.dtype != torch.int64:
            raise ValueError(
                f"Expected labels of shape ({n},) with whole numbers (int64), one for each node, got "
                f"{tuple(self.labels.shape)} of {self.labels.dtype}."
            )
        if tuple(self.train.shape) != (n,) or self.train.dtype != torch.bool:
            raise ValueError(
                f"Expected train of shape ({n},) with True for each training node, got "
                f"{tuple(self.train.shape)} of {self.train.dtype}."
            )
        if not bool(self.train.any()):
            raise ValueError("Expected train to be True for one node at least: there is no training node.")
        if int(self.labels[self.train].min()) < 0:
            node = int((self.train & (self.labels < 0)).nonzero()[0])
            raise ValueError(
                f"Expected a label >= 0 for each training node, but node {node} has "
                f"{int(self.labels[node])}. Leave nodes without a label out of train."
            )
        if self.edges.dim() != 2 or len(self.edges) != 2 or self.edges.dtype != torch.int64:
            raise ValueError(
                f"Expected edges of shape (2, edges) with whole numbers (int64), got "
                f"{tuple(self.edges.shape)} of {self.edges.dtype}."
            )
        outside = (self.edges < 0) | (self.edges >= n)
        if bool(outside.any()):
            place = int(outside.any(0).nonzero()[0])
            raise ValueError(
                f"Expected edges between the nodes 0 to {n - 1}, but edges[:, {place}] is "
                f"{self.edges[:, place].tolist()}. Remove edges to nodes that do not exist."
            )
        object.__setattr__(self, "train", self.train.clone())  # who is private does not change later

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.features)

    @property
    def train_nodes(self) -> Tensor:
        """Numbers of the training nodes, in rising order."""
        return self.train.nonzero().flatten()

    @classmethod
    def from_pyg(cls, data: Any) -> "Graph":
        """Takes `x`, `y`, `edge_index` and `train_mask` of a `torch_geometric.data.Data`."""
        missing = [
            name for name in ("x", "y", "edge_index", "train_mask") if getattr(data, name, None) is None
        ]
        if missing:
            raise TypeError(
                f"Expected a torch_geometric.data.Data with x, y, edge_index and train_mask, but "
                f"{type(data).__name__} has no {', '.join(missing)}. Set what is missing, or use from_edges."
            )
        labels = data.y.squeeze(1) if data.y.dim() == 2 and data.y.shape[1] == 1 else data.y
        train = data.train_mask
        if train.dim() == 2:
            raise ValueError(
                f"Expected train_mask of shape (nodes,), got {tuple(train.shape)}: several splits. Choose "
                "one, for example data.train_mask = data.train_mask[:, 0]."
            )
        return cls(data.x, labels, data.edge_index, train)
