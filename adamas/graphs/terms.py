"""Presents each training node with its neighbourhood as one example, and counts the examples of a node."""

from typing import Any

import torch
from dp_accounting import NeighboringRelation
from torch import Tensor

from adamas import _validate
from adamas._streams import Seed
from adamas.accounting.terms import MOST_TERMS
from adamas.graphs.edges import CHOICES, bounded_edges, unique_edges
from adamas.graphs.graph import Graph
from adamas.graphs.samplers import TERM_SAMPLERS, TermSampler
from adamas.graphs.trees import Trees, gathered
from adamas.loading import Rows

RELATIONS = {"remove": NeighboringRelation.REPLACE_SPECIAL, "replace": NeighboringRelation.REPLACE_ONE}
"""What may happen to a node, by name."""

MARK = "_adamas_terms"
"""An attribute of features that were read from terms, by which plain examples made of them are refused."""

NEIGHBORS = ("held-out", "none", "all")
"""Whose features a prediction may read, by name."""


class Neighborhoods(Rows):
    """Nodes with their neighbourhoods, as examples `(features, mask, label)` for evaluation.

    Args:
        graph: The graph.
        nodes: Numbers of the nodes.
        trees: Their neighbourhoods.
    """

    def __init__(self, graph: Graph, nodes: Tensor, trees: Trees) -> None:
        self._graph, self._nodes, self._trees = graph, nodes, trees

    def __len__(self) -> int:
        return len(self._nodes)

    def rows(self, places: Tensor) -> tuple[Tensor, ...]:
        """Gathers features (B, n, F), mask (B, n) and labels (B,) of the nodes at these places."""
        nodes = self._nodes[places]
        return (*gathered(self._graph.features, self._trees.nodes_of(nodes)), self._graph.labels[nodes])

    def __getitem__(self, place: int | slice | Tensor) -> tuple[Tensor, ...]:
        """See `Rows`. The features remember that they are those of terms."""
        values = super().__getitem__(place)
        setattr(values[0], MARK, True)
        return values

    @property
    def nodes(self) -> Tensor:
        """Numbers of the nodes."""
        return self._nodes

    def of(self, nodes: Tensor) -> "Neighborhoods":
        """Returns other nodes with neighbourhoods along the same edges."""
        return Neighborhoods(self._graph, nodes, self._trees)


class NodeTerms(Neighborhoods):
    r"""Training nodes as examples for `adamas.make_private`, each with the neighbourhood that it reads.

    An example is `(features, mask, label)`; `adamas.graphs.trees` has the layout, and `model(features, mask)`
    reads it. Neighbourhoods are gathered for each batch, and not stored.

    Privacy: a node enters its own term, and those that its messages reach: at most
    :math:`N_r = 1 + K + \dots + K^r` for r hops and K the `max_degree`. The engine clips each term, and the
    sampler accounts for all terms of a node together. Protected are one node's features, label and list of
    edges; see `relation` and `max_in_degree`. The number of training nodes, and which nodes train, is public.

    Args:
        graph: The graph; see also `from_edges` and `from_pyg`.
        max_degree: K, how many nodes receive the messages of a node. More edges inform more, and need more
            noise.
        hops: r, 1 or 2: how many messages away a term reads.
        seed: Seed of the choice of edges. It may be public.
        width: How many messages a node reads at most; None takes `max_degree`. It does not change the
            privacy.
        edges: "uniform" keeps `max_degree` edges of a node; "published" is the choice of Daigavane et al.;
            see `adamas.graphs.edges`.
        inductive: Whether terms read training nodes only. False reads all nodes, and protects them all.
        relation: "remove": the neighbour is the graph without the record of one node, or with other features
            and another label of it. "replace": its list of edges may be another one, too, which changes up to
            2 N_r - 1 terms.
        max_in_degree: None: an edge belongs to the list of its source alone. A number D: edges to the removed
            node disappear, too, as long as no node is on more than D lists. This changes up to
            N_r + D N_(r-1) terms.

    Example:
        >>> import torch
        >>> from adamas.graphs import NodeTerms
        >>> ring = torch.stack([torch.arange(6), torch.arange(6).roll(1)])
        >>> train = torch.ones(6, dtype=torch.bool)
        >>> terms = NodeTerms.from_edges(torch.eye(6), ring, torch.arange(6) % 2, train, max_degree=2)
        >>> len(terms), terms.terms_per_node
        (6, 3)
        >>> features, mask, label = terms[0]
        >>> features.argmax(1).tolist(), mask.tolist()
        ([0, 1, 0], [True, True, False])
    """

    def __init__(
        self,
        graph: Graph,
        *,
        max_degree: int,
        hops: int = 1,
        seed: int = 0,
        width: int | None = None,
        edges: str = "uniform",
        inductive: bool = True,
        relation: str = "remove",
        max_in_degree: int | None = None,
    ) -> None:
        _check_graph(graph)
        _validate.count(max_degree=max_degree, hops=hops, **({} if width is None else {"width": width}))
        if hops not in (1, 2):
            raise ValueError(f"Expected hops={hops!r} to be 1 or 2.")
        if not isinstance(inductive, bool):
            raise TypeError(f"Expected inductive={inductive!r} to be True or False.")
        max_degree, hops, width = int(max_degree), int(hops), int(width or max_degree)
        if max_in_degree is not None:
            _validate.count(max_in_degree=max_in_degree)
            max_in_degree = int(max_in_degree)
        _validate.one_of(CHOICES, edges=edges)
        _validate.one_of(RELATIONS, relation=relation)
        self._options: dict[str, Any] = {
            "max_degree": max_degree,
            "hops": hops,
            "seed": seed,
            "width": width,
            "edges": edges,
            "inductive": inductive,
            "relation": relation,
            "max_in_degree": max_in_degree,
        }
        self._protected = _protected(max_degree, hops, relation, max_in_degree)
        usable = _usable(graph, hops, inductive)
        if max_in_degree is not None:
            _check_in_degrees(usable, max_in_degree, relation, edges)
        self._kept_edges = bounded_edges(usable, max_degree, seed, edges)
        trees = Trees(self._kept_edges, graph.nodes, width, hops)
        super().__init__(graph, graph.train_nodes, trees)
        if self.terms_per_node > MOST_TERMS:
            raise ValueError(
                f"Expected max_degree={max_degree} with hops={hops} to change at most {MOST_TERMS} terms for "
                f"each node, but it changes {self.terms_per_node}. Lower max_degree."
            )

    @classmethod
    def from_edges(
        cls, features: Tensor, edges: Tensor, labels: Tensor, train_mask: Tensor, **options: Any
    ) -> "NodeTerms":
        """Takes plain tensors; see `Graph`. `options` are those of `NodeTerms`."""
        return cls(Graph(features, labels, edges, train_mask), **options)

    @classmethod
    def from_pyg(cls, data: Any, **options: Any) -> "NodeTerms":
        """Takes `x`, `edge_index`, `y` and `train_mask` of a `torch_geometric.data.Data`."""
        return cls(Graph.from_pyg(data), **options)

    def on(self, graph: Graph) -> "NodeTerms":
        """Returns the same of another graph, with the same coins."""
        return NodeTerms(graph, **self._options)

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self._graph

    @property
    def kept_edges(self) -> Tensor:
        """The edges that terms read, (2, E)."""
        return self._kept_edges

    @property
    def published_terms(self) -> int:
        """N_r: how many terms the messages of a node reach, its own term included."""
        return terms_reached(self._options["max_degree"], self._options["hops"])

    @property
    def protected_nodes(self) -> int:
        """Number of nodes whose records terms read."""
        return len(self) if self._options["inductive"] else self._graph.nodes

    @property
    def terms_per_node(self) -> int:
        """How many terms one node changes at most, under the relation."""
        return self._protected[0]

    @property
    def protects(self) -> str:
        """What the guarantee is about, in words."""
        return self._protected[1]

    def sampler(self, sampling: str, batch_size: int, seed: Seed | int | None = None) -> TermSampler:
        """Makes the sampler that draws batches of these terms, and accounts for them.

        Args:
            sampling: "poisson", which has the smaller epsilon, or "fixed-size".
            batch_size: Number of terms in a batch, or its expectation.
            seed: See `adamas.sampling.Sampler`.
        """
        if sampling not in TERM_SAMPLERS:
            raise ValueError(
                f"Expected sampling={sampling!r} among {sorted(TERM_SAMPLERS)} for NodeTerms: others have no "
                "bound for nodes that change several terms."
            )
        return TERM_SAMPLERS[sampling](
            len(self),
            batch_size,
            seed,
            terms=self.terms_per_node,
            relation=RELATIONS[self._options["relation"]],
            protects=self.protects,
            made_with=self._options,
        )

    def noise_multiplier(self, published: float) -> float:
        """Converts a noise multiplier of the papers, in units of 2 N_r clip norms, to that of `make_private`.

        Example:
            >>> import torch
            >>> edges = torch.zeros(2, 0, dtype=torch.int64)
            >>> labels, train = torch.zeros(9).long(), torch.ones(9).bool()
            >>> terms = NodeTerms.from_edges(torch.eye(9), edges, labels, train, max_degree=7)
            >>> terms.noise_multiplier(2.0)
            32.0
        """
        _validate.noise_multiplier(published=published)
        return 2 * self.published_terms * published

    def evaluation(
        self, nodes: Tensor, neighbors: str = "held-out", width: int | None = None
    ) -> Neighborhoods:
        """Returns other nodes with neighbourhoods for predictions.

        Args:
            nodes: Numbers of the nodes, or which nodes, as a mask.
            neighbors: Whose features a prediction reads. "held-out": nodes that are not training nodes.
                "none": the node alone. "all" also reads training nodes, directly and without noise: whoever
                sees such a prediction learns about their features and edges, which the guarantee does not
                cover.
            width: How many messages a node reads at most; None takes that of training.
        """
        _validate.one_of(NEIGHBORS, neighbors=neighbors)
        if width is not None:
            _validate.count(width=width)
        nodes = _numbers(nodes, self._graph.nodes)
        edges = unique_edges(self._graph.edges, self._graph.nodes)
        if neighbors == "held-out":
            edges = edges[:, ~self._graph.train[edges[0]] & ~self._graph.train[edges[1]]]
            private = self._graph.train[nodes]
            if bool(private.any()):
                raise ValueError(
                    f"Expected nodes that are not training nodes, but node {int(nodes[private][0])} is one. "
                    "Leave training nodes out: predictions for them read their own features."
                )
        elif neighbors == "none":
            edges = edges[:, :0]
        kept = bounded_edges(edges, self._graph.nodes, self._options["seed"])
        trees = Trees(kept, self._graph.nodes, width or self._options["width"], self._options["hops"])
        return Neighborhoods(self._graph, nodes, trees)

    def __repr__(self) -> str:
        return (
            f"NodeTerms({len(self)} training nodes of {self._graph.nodes}, "
            f"max_degree={self._options['max_degree']}, hops={self._options['hops']}, a node changes up to "
            f"{self.terms_per_node} terms)"
        )


def terms_reached(max_degree: int, hops: int) -> int:
    """Returns N_r: how many terms a node enters, its own included."""
    _validate.count(max_degree=max_degree)
    return sum(int(max_degree) ** hop for hop in range(hops + 1))


def _protected(max_degree: int, hops: int, relation: str, max_in_degree: int | None) -> tuple[int, str]:
    """Returns how many terms one node changes at most, and what about the node."""
    terms = terms_reached(max_degree, hops)
    if relation == "replace":
        return 2 * terms - 1, "replacing one node: its features, its label and its list of edges"
    if max_in_degree is not None:
        terms += max_in_degree * terms_reached(max_degree, hops - 1)
        return terms, "removing one node: its features, its label, its edges and the edges to it"
    return terms, "removing one node: its features, its label and its list of edges"


def _usable(graph: Graph, hops: int, inductive: bool) -> Tensor:
    """Returns the edges along which terms may read."""
    edges = unique_edges(graph.edges, graph.nodes)
    if inductive:
        return edges[:, graph.train[edges[0]] & graph.train[edges[1]]]
    # With one hop, only messages to training nodes are read.
    return edges if hops > 1 else edges[:, graph.train[edges[1]]]


def _check_graph(graph: object) -> None:
    if isinstance(graph, Graph):
        return
    name = type(graph).__name__
    if type(graph).__module__.startswith("torch_geometric"):
        raise TypeError(
            f"Expected a Graph, got {name} of PyTorch Geometric. Use NodeTerms.from_pyg(data, ...)."
        )
    raise TypeError(
        f"Expected a Graph, got {name}. Use NodeTerms.from_edges(features, edges, labels, train_mask, ...), "
        "or the attribute graph of a data set of adamas.data."
    )


def _check_in_degrees(edges: Tensor, largest: int, relation: str, choice: str) -> None:
    if choice != "uniform":
        raise ValueError(
            f"Expected edges='uniform' with max_in_degree, got {choice!r}, where one edge less on a list "
            "changes the choice of all others."
        )
    if relation != "remove":
        raise ValueError(
            f"Expected relation='remove' with max_in_degree, got {relation!r}: a replaced node could be put "
            "on any list."
        )
    if edges.shape[1] and (found := int(torch.bincount(edges[1]).max())) > largest:
        raise ValueError(
            f"Expected no node to be on more than max_in_degree={largest} lists, but one is on {found}. "
            "Raise max_in_degree, or remove edges before."
        )


def _numbers(nodes: Tensor, count: int) -> Tensor:
    if not isinstance(nodes, Tensor):
        raise TypeError(f"Expected nodes to be a tensor, got {type(nodes).__name__}.")
    if nodes.dtype == torch.bool:
        if tuple(nodes.shape) != (count,):
            raise ValueError(
                f"Expected a mask of shape ({count},), one for each node, got {tuple(nodes.shape)}."
            )
        return nodes.nonzero().flatten()
    if nodes.dim() != 1 or nodes.dtype != torch.int64 or bool(((nodes < 0) | (nodes >= count)).any()):
        raise ValueError(f"Expected nodes to be a mask, or numbers from 0 to {count - 1}.")
    return nodes
