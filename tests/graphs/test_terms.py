"""What a term reads: trees of a width and depth, against a walk by hand, and what predictions may read."""

from itertools import pairwise

import pytest
import torch

from adamas.graphs import NodeTerms
from adamas.graphs.edges import unique_edges
from tests.support.small_graphs import EDGES, graph_of


def senders_by_hand(edges, node):
    return [int(v) for v, u in edges.T if u == node]


def walked(edges, node, hops):
    """The multiset of nodes at each distance, by following edges backwards."""
    levels = [[node]]
    for _ in range(hops):
        levels.append([v for u in levels[-1] for v in senders_by_hand(edges, u)])
    return [sorted(level) for level in levels]


@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize("name", EDGES)
def test_a_term_reads_all_that_reaches_it_where_nothing_is_cut(name, hops):
    graph = graph_of(name, training=1.1)
    numbered = torch.arange(graph.nodes, dtype=torch.float32)[:, None] + 1
    width = graph.nodes
    terms = NodeTerms.from_edges(
        numbered, graph.edges, graph.labels, graph.train, max_degree=graph.nodes, hops=hops, width=width
    )
    edges = unique_edges(graph.edges, graph.nodes)
    features, mask, labels = terms[:]
    assert torch.equal(labels, graph.labels)
    assert torch.equal(mask, features[..., 0] != 0)
    bounds = [0, 1, 1 + width, 1 + width + width**2][: hops + 2]
    for node in range(graph.nodes):
        rows = [features[node, a:b, 0][mask[node, a:b]] - 1 for a, b in pairwise(bounds)]
        assert [sorted(map(int, row)) for row in rows] == walked(edges, node, hops)


def test_the_children_of_a_row_have_their_places():
    # 3 -> 1 -> 0 and 4 -> 2 -> 0
    edges = torch.tensor([[1, 2, 3, 4], [0, 0, 1, 2]])
    terms = NodeTerms.from_edges(
        torch.arange(5.0)[:, None] + 10,
        edges,
        torch.zeros(5).long(),
        torch.ones(5).bool(),
        max_degree=2,
        hops=2,
    )
    rows = terms[0][0][:, 0].tolist()
    first, second = rows[1:3]
    assert {first, second} == {11.0, 12.0}
    for place, parent in enumerate(rows[1:3]):
        children = rows[1 + (1 + place) * 2 : 1 + (2 + place) * 2]
        assert children == [parent + 2, 0.0]


def test_inductive_terms_read_training_nodes_only():
    graph = graph_of("dense", training=0.5)
    numbered = torch.arange(graph.nodes, dtype=torch.float32)[:, None]
    options = {"max_degree": 20, "hops": 2}
    inside = NodeTerms.from_edges(numbered, graph.edges, graph.labels, graph.train, **options)
    features, mask, _ = inside[:]
    assert graph.train[features[..., 0][mask].long()].all()
    across = NodeTerms.from_edges(
        numbered, graph.edges, graph.labels, graph.train, inductive=False, **options
    )
    features, mask, _ = across[:]
    assert not graph.train[features[..., 0][mask].long()].all()


@pytest.mark.parametrize(
    ("neighbors", "reads"), [("held-out", "no training node"), ("none", "itself"), ("all", "all")]
)
def test_predictions_read_what_they_may(neighbors, reads):
    graph = graph_of("dense", training=0.5)
    numbered = torch.arange(graph.nodes, dtype=torch.float32)[:, None]
    terms = NodeTerms.from_edges(numbered, graph.edges, graph.labels, graph.train, max_degree=3)
    others = terms.evaluation(~graph.train, neighbors, width=20)
    features, mask, labels = others[:]
    read = features[..., 0][mask].long()
    assert torch.equal(labels, graph.labels[~graph.train])
    if reads == "itself":
        assert mask.sum() == len(others)
    elif reads == "all":
        assert graph.train[read].any()
    else:
        assert not graph.train[read].any()
        assert mask.sum() > len(others)


def test_predictions_for_training_nodes_need_consent():
    graph = graph_of("dense")
    terms = NodeTerms(graph, max_degree=3)
    with pytest.raises(ValueError, match="training nodes"):
        terms.evaluation(graph.train)
    assert len(terms.evaluation(graph.train, "all")) == int(graph.train.sum())


@pytest.mark.parametrize(
    "nodes", [torch.ones(3).bool(), torch.tensor([99]), torch.tensor([[0]]), torch.tensor([0.0])]
)
def test_nodes_to_predict_must_exist(nodes):
    with pytest.raises(ValueError, match="Expected"):
        NodeTerms(graph_of("dense"), max_degree=3).evaluation(nodes, "all")


def test_examples_are_read_like_those_of_a_tensor_data_set():
    terms = NodeTerms(graph_of("dense"), max_degree=3)
    whole = terms[:]
    for place in (0, 2, len(terms) - 1, -1):
        assert all(torch.equal(a[place], b) for a, b in zip(whole, terms[place], strict=True))
    some = torch.tensor([2, 0])
    assert all(torch.equal(a[some], b) for a, b in zip(whole, terms[some], strict=True))
    with pytest.raises(IndexError):
        terms[len(terms)]


def test_the_same_seed_chooses_the_same_and_another_does_not():
    graph = graph_of("hub", training=1.1)
    first, again, other = (NodeTerms(graph, max_degree=2, seed=seed).kept_edges for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert first.shape != other.shape or not torch.equal(first, other)
