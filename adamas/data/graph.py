"""A data set whose examples are the nodes of one graph."""

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from adamas import _validate
from adamas.data.base import Data
from adamas.graphs import Graph, Neighborhoods, NodeTerms
from adamas.graphs.edges import unique_edges

SPLITS = ("public", "random")
"""Splits of a graph: the one that the data set defines, or 60/20/20 of the labelled nodes at random."""

Splits = tuple[Tensor, Tensor, Tensor]
"""Numbers of the training, validation and test nodes."""


@dataclass(frozen=True)
class GraphData(Data):
    """Nodes with features and labels, and the edges between them.

    `train` and `test` are the `(features, label)` of the nodes in `train_nodes` and `test_nodes`.

    Attributes:
        features: Features of all nodes, (N, F).
        labels: Labels of all nodes, (N,).
        edges: Sorted pairs of nodes, (2, E): the first sends messages to the second. Each edge appears once
            in each direction, unless the graph is directed.
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
        splits: Splits,
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
        nodes = self.validation_nodes
        if isinstance(self.test, Neighborhoods):
            test: TensorDataset | Neighborhoods = self.test.of(nodes)
        else:
            test = TensorDataset(self.features[nodes], self.labels[nodes])
        return replace(
            self,
            name=f"{self.name}/validation",
            test=test,
            test_nodes=nodes,
            validation_nodes=nodes[:0],
        )

    def normalized(self) -> "GraphData":
        """Returns the same graph with each node's features divided by their sum, unless it is 0.

        A node's features depend on that node alone, so this costs no privacy.

        Raises:
            ValueError: If a feature is negative.
        """
        least = float(self.features.min())
        if least < 0:
            raise ValueError(
                f"Expected features >= 0 to be divided by their sum, but {self.name!r} has {least:g}. Load "
                "it without normalize=True."
            )
        sums = self.features.sum(1, keepdim=True)
        return self.of(
            self.name,
            torch.where(sums > 0, self.features / sums, self.features),
            self.labels,
            self.edges,
            (self.train_nodes, self.validation_nodes, self.test_nodes),
            self.classes,
        )

    def within_splits(self) -> "GraphData":
        """Returns the same graph without the edges that join nodes of different sets.

        No training node then hears from a validation or test node, as in "ogbn-arxiv-disjoint" of Daigavane
        et al., arXiv:2111.15521. Nodes that are in none of the sets form a set of their own.
        """
        member = torch.zeros(len(self.labels), dtype=torch.int64)
        for number, nodes in enumerate((self.train_nodes, self.validation_nodes, self.test_nodes), 1):
            member[nodes] = number
        sender, receiver = member[self.edges]
        return replace(self, edges=self.edges[:, sender == receiver])

    @property
    def graph(self) -> Graph:
        """The graph, for `adamas.graphs.NodeTerms`."""
        train = torch.zeros(len(self.labels), dtype=torch.bool)
        train[self.train_nodes] = True
        return Graph(self.features, self.labels, self.edges, train)

    def as_terms(self, neighbors: str = "held-out", **options: Any) -> "GraphData":
        """Returns the same with terms as examples: nodes with their neighbourhoods.

        Args:
            neighbors: Whose features predictions for test nodes read; see `NodeTerms.evaluation`.
            options: Options of `adamas.graphs.NodeTerms`, such as `max_degree`.
        """
        terms = NodeTerms(self.graph, **options)
        return replace(self, train=terms, test=terms.evaluation(self.test_nodes, neighbors))


def with_terms(load: Callable[..., GraphData]) -> Callable[..., GraphData]:
    """Gives a loader the options of `GraphData.as_terms`. With `max_degree`, its examples are terms."""
    names = [name for name in inspect.signature(NodeTerms).parameters if name != "graph"] + ["neighbors"]
    options = [Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in names]

    @functools.wraps(load)
    def loaded(*arguments: Any, **given: Any) -> GraphData:
        chosen = {name: given.pop(name) for name in names if name in given}
        graph = load(*arguments, **given)
        chosen = {name: value for name, value in chosen.items() if value is not None}
        if not chosen:
            return graph
        if "max_degree" not in chosen:
            raise ValueError(f"Expected max_degree with {', '.join(chosen)}: they are options of terms.")
        return graph.as_terms(**chosen)

    signature = inspect.signature(load)
    loaded.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), *options]
    )
    return loaded


def choose_split(split: str, split_seed: int, public: Splits, labelled: Tensor) -> Splits:
    """Returns the split of a name in `SPLITS`.

    Args:
        split: A name in `SPLITS`.
        split_seed: Seed of a random split. The split is the same on every machine.
        public: The split that the data set defines.
        labelled: Numbers of the nodes that a random split divides.
    """
    _validate.one_of(SPLITS, split=split)
    _validate.whole(split_seed=split_seed)
    if split == "public":
        return public
    nodes = labelled.tolist()
    digests = {node: hashlib.sha256(b"split:%d:%d" % (split_seed, node)).digest() for node in nodes}
    order = torch.tensor(sorted(nodes, key=digests.__getitem__))
    train, validation, test = order.tensor_split([3 * len(order) // 5, 4 * len(order) // 5])
    return train.sort().values, validation.sort().values, test.sort().values


def both_directions(pairs: Iterable[tuple[int, int]]) -> Tensor:
    """Returns sorted edges (2, E) in both directions; drops loops and repetitions."""
    return undirected(torch.tensor(list(pairs), dtype=torch.int64).reshape(-1, 2).T)


def undirected(edges: Tensor) -> Tensor:
    """Returns edges (2, E) sorted and in both directions, without loops and repetitions."""
    return distinct(torch.cat([edges, edges.flip(0)], 1))


def distinct(edges: Tensor) -> Tensor:
    """Returns edges (2, E) sorted, without loops and repetitions."""
    return unique_edges(edges, int(edges.max()) + 1) if edges.numel() else edges
