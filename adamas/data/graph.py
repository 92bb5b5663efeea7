"""A data set whose examples are the nodes of one graph."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from adamas.data.base import Data


@dataclass(frozen=True)
class GraphData(Data):
    """Nodes with features and labels, and the edges between them.

    `train` and `test` are the `(features, label)` of the nodes in `train_nodes` and `test_nodes`.

    Attributes:
        features: Features of all nodes, (N, F).
        labels: Labels of all nodes, (N,).
        edges: Sorted pairs of nodes, (2, E); each edge appears once in each direction.
        train_nodes: Numbers of the training nodes.
        validation_nodes: Numbers of the validation nodes.
        test_nodes: Numbers of the test nodes.
    """

    features: Tensor
    labels: Tensor
    edges: Tensor
    train_nodes: Tensor
    validation_nodes: Tensor
    test_nodes: Tensor

    @classmethod
    def of(
        cls,
        name: str,
        features: Tensor,
        labels: Tensor,
        edges: Tensor,
        splits: tuple[Tensor, Tensor, Tensor],
        classes: int,
    ) -> "GraphData":
        """Builds a graph with its training, validation and test nodes."""
        train_nodes, validation_nodes, test_nodes = splits
        return cls(
            name=name,
            train=TensorDataset(features[train_nodes], labels[train_nodes]),
            test=TensorDataset(features[test_nodes], labels[test_nodes]),
            input_shape=(features.shape[1],),
            classes=classes,
            features=features,
            labels=labels,
            edges=edges,
            train_nodes=train_nodes,
            validation_nodes=validation_nodes,
            test_nodes=test_nodes,
        )

    def with_validation(self, share: float = 0.1) -> "GraphData":
        """Returns the same graph with its own validation nodes as test nodes.

        Args:
            share: Ignored: the data set defines its validation nodes.
        """
        return replace(
            self,
            name=f"{self.name}/validation",
            test=TensorDataset(self.features[self.validation_nodes], self.labels[self.validation_nodes]),
            test_nodes=self.validation_nodes,
            validation_nodes=self.validation_nodes[:0],
        )


def both_directions(pairs: Iterable[tuple[int, int]]) -> Tensor:
    """Returns sorted edges (2, E) in both directions; drops loops and repetitions."""
    edges = {pair for a, b in pairs if a != b for pair in ((a, b), (b, a))}
    return torch.tensor(sorted(edges), dtype=torch.int64).reshape(-1, 2).T.contiguous()
