"""One node changes no more terms than its privacy accounts for, and moves the sum by no more than that.

Every node of every small graph is removed or changed, and everything is sampled again with the same coins.
"""

from itertools import product

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import adamas
from adamas import rules
from adamas.graphs import NodeTerms
from adamas.graphs.edges import CHOICES
from tests.support.small_graphs import (
    EDGES,
    FEATURES,
    graph_of,
    with_other_list,
    with_other_record,
    without_list,
    without_node,
)

DEGREES = (1, 2, *(pytest.param(degree, marks=pytest.mark.slow) for degree in (5, 20)))


def changed_terms(before, after):
    """Tells which examples of two data sets differ."""
    pairs = zip(before[:], after[:], strict=True)
    return torch.stack([(a != b).flatten(1).any(1) if a.dim() > 1 else a != b for a, b in pairs]).any(0)


@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize("max_degree", DEGREES)
@pytest.mark.parametrize("name", EDGES)
def test_no_node_changes_more_terms_than_accounted_for(name, max_degree, hops):
    graph = graph_of(name)
    neighbors_of = {
        "remove": (without_list, with_other_record),
        "replace": (without_list, with_other_record, with_other_list),
    }
    for relation, edges, inductive in product(neighbors_of, CHOICES, (True, False)):
        options = {
            "max_degree": max_degree,
            "hops": hops,
            "edges": edges,
            "inductive": inductive,
            "relation": relation,
        }
        before = NodeTerms(graph, **options)
        for neighbor in neighbors_of[relation]:
            for node in range(graph.nodes):
                changed = changed_terms(before, NodeTerms(neighbor(graph, node), **options))
                assert int(changed.sum()) <= before.terms_per_node, (neighbor.__name__, node, options)


@pytest.mark.slow
@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize("max_degree", DEGREES)
@pytest.mark.parametrize("name", EDGES)
def test_bounded_in_degrees_also_cover_the_edges_to_a_node(name, max_degree, hops):
    graph = graph_of(name, training=1.1)
    largest = max(1, int(torch.bincount(graph.edges[1], minlength=1).max()))
    options = {"max_degree": max_degree, "hops": hops, "max_in_degree": largest}
    before = NodeTerms(graph, **options)
    for node in range(graph.nodes):
        after = NodeTerms(without_node(graph, node), **options)
        assert int(changed_terms(before, after).sum()) <= before.terms_per_node, node


def test_edges_to_a_node_are_not_covered_without_that_bound():
    # Somebody on many lists, whose removal makes their owners choose others: no choice of edges can avoid it.
    graph = graph_of("hub", training=1.1)
    before = NodeTerms(graph, max_degree=1)
    after = NodeTerms(without_node(graph, 0), max_degree=1)
    assert int(changed_terms(before, after).sum()) > before.terms_per_node


def test_a_node_that_many_choose_changes_as_many_terms_as_accounted_for():
    graph = graph_of("hub that only sends", training=1.1)
    before = NodeTerms(graph, max_degree=5)
    changed = changed_terms(before, NodeTerms(without_list(graph, 0), max_degree=5))
    assert int(changed.sum()) == before.terms_per_node == 6


@pytest.mark.parametrize("edges", ["uniform", "published"])
@pytest.mark.parametrize("name", EDGES)
def test_a_node_does_not_change_what_others_choose(name, edges):
    graph = graph_of(name)
    before = NodeTerms(graph, max_degree=2, edges=edges)
    for node in range(graph.nodes):
        after = NodeTerms(with_other_list(graph, node), max_degree=2, edges=edges)
        kept = [
            {pair for pair in zip(*terms.kept_edges.tolist(), strict=True) if pair[0] != node}
            for terms in (before, after)
        ]
        assert kept[0] == kept[1]


class Reader(nn.Module):
    """Reads all rows of a neighbourhood, with large gradients, so that every term is clipped."""

    def __init__(self):
        super().__init__()
        self.own, self.others = nn.Linear(FEATURES, 2), nn.Linear(FEATURES, 2, bias=False)

    def forward(self, features, mask):
        rows = torch.sin(30 * features) * mask[..., None]
        return 50 * (self.own(features[:, 0]) + self.others(rows.sum(1)))


def loss(model, batch):
    features, mask, labels = batch
    return F.cross_entropy(model(features, mask), labels, reduction="none")


def released_sum(terms, engine, make_model=Reader, loss=loss):
    """The clipped sum over all terms, read from one step of a run without noise."""
    torch.manual_seed(0)
    model = make_model()
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    run = adamas.make_private(
        *(model, rules.SGD(model.parameters(), lr=1.0), terms, loss),
        **{"batch_size": len(terms), "steps": 1, "noise_multiplier": 0.0, "delta": 1e-3},
        **{"seed": 0, "engine": engine, "progress": False},
    )
    list(run)
    return (before - nn.utils.parameters_to_vector(model.parameters()).detach()) * len(terms)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["bookkeeping", "loop"])
@pytest.mark.parametrize(("name", "max_degree"), [("hub", 1), ("undirected", 2), ("duplicates", 3)])
def test_no_node_moves_the_sum_of_a_run_by_more_than_the_stated_unit(name, max_degree, engine):
    graph = graph_of(name)
    terms = NodeTerms(graph, max_degree=max_degree)
    unit = 2 * terms.terms_per_node  # clipping norms: lambda of the papers counts in it
    base, moved = released_sum(terms, engine), []
    for node in range(graph.nodes):
        for neighbor in (without_list, with_other_record):
            other = NodeTerms(neighbor(graph, node), max_degree=max_degree)
            moved.append(float((released_sum(other, engine) - base).norm()) / unit)
    assert max(moved) <= 1 + 1e-6
    assert max(moved) > 0.1  # the bound is of the right order


class Slope(nn.Module):
    """One weight, times all features of a neighbourhood: the gradient of a term is their sum."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Linear(1, 1, bias=False)

    def forward(self, features, mask):
        return self.weight((features * mask[..., None]).sum(1)).squeeze(1)


def test_the_worst_node_moves_the_sum_by_one_unit_exactly():
    def terms(value):
        features = torch.zeros(12, 1)
        features[0] = value
        _, edges = EDGES["hub that only sends"]
        train = torch.ones(12, dtype=torch.bool)
        return NodeTerms.from_edges(features, edges, torch.zeros(12).long(), train, max_degree=4)

    sums = [
        released_sum(terms(value), "bookkeeping", Slope, lambda model, batch: model(*batch[:2]))
        for value in (1e3, -1e3)
    ]
    assert float((sums[0] - sums[1]).norm()) == pytest.approx(2 * 5, rel=1e-5)
