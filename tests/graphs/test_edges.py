"""The choice of edges: bounded, uniform, the papers', and a function of a node's own list."""

import numpy as np
import pytest
import torch
from scipy import stats

from adamas.graphs.edges import bounded_edges, edge_coins, unique_edges
from tests.support.small_graphs import EDGES, star


@pytest.mark.parametrize("choice", ["uniform", "published"])
@pytest.mark.parametrize("max_degree", [1, 3, 50])
@pytest.mark.parametrize("name", EDGES)
def test_no_node_sends_to_more_than_allowed(name, max_degree, choice):
    nodes, edges = EDGES[name]
    edges = unique_edges(edges, nodes)
    kept = bounded_edges(edges, max_degree, 0, choice)
    assert torch.bincount(kept[0], minlength=nodes).max() <= max_degree
    pairs = set(zip(*edges.tolist(), strict=True))
    assert set(zip(*kept.tolist(), strict=True)) <= pairs


@pytest.mark.parametrize("name", EDGES)
def test_uniform_keeps_all_that_it_may(name):
    nodes, edges = EDGES[name]
    edges = unique_edges(edges, nodes)
    degrees = torch.bincount(edges[0], minlength=nodes)
    kept = torch.bincount(bounded_edges(edges, 3, 0)[0], minlength=nodes)
    assert torch.equal(kept, degrees.clamp(max=3))


def test_loops_and_repetitions_are_dropped():
    edges = torch.tensor([[2, 0, 0, 1, 0], [2, 1, 1, 0, 1]])
    assert unique_edges(edges, 3).tolist() == [[0, 1], [1, 0]]


def frequencies(choice, degree, max_degree, seeds=4000):
    """How often each of the edges of one node is kept, and how many are kept at a time."""
    edges = star(degree)[:, :degree]
    kept = [bounded_edges(edges, max_degree, seed, choice)[1] - 1 for seed in range(seeds)]
    return np.bincount(torch.cat(kept).numpy(), minlength=degree), np.array([len(one) for one in kept])


def test_uniform_prefers_no_edge():
    # A false alarm has probability 1e-6. An edge that is kept a tenth less often is seen.
    kept, _ = frequencies("uniform", 10, 3)
    assert stats.chisquare(kept).pvalue > 1e-6
    kept[0] *= 0.9
    assert stats.chisquare(kept, kept.sum() / 10 * np.ones(10)).pvalue < 1e-2


def test_published_keeps_each_edge_with_half_the_share_and_drops_what_is_too_much():
    # In 4,000 trials: P(k kept) is binomial for k <= K, and all else is 0. False alarm 1e-6.
    degree, max_degree, seeds = 8, 2, 4000
    _, counts = frequencies("published", degree, max_degree, seeds)
    law = stats.binom(degree, max_degree / (2 * degree)).pmf(np.arange(max_degree + 1))
    law[0] += 1 - law.sum()
    assert stats.chisquare(np.bincount(counts, minlength=3), seeds * law).pvalue > 1e-6
    assert stats.chisquare(np.bincount(counts, minlength=3), seeds * np.array([0.5, 0.3, 0.2])).pvalue < 1e-6


def test_coins_are_uniform_and_belong_to_their_edge():
    edges = torch.cartesian_prod(torch.arange(100), torch.arange(100)).T.contiguous()
    coins = edge_coins(edges, 7)
    assert stats.kstest(coins, "uniform").pvalue > 1e-6
    assert abs(np.corrcoef(coins[:-1], coins[1:])[0, 1]) < 0.05
    assert np.array_equal(edge_coins(edges[:, 500:600], 7), coins[500:600])
    assert not np.array_equal(edge_coins(edges, 8), coins)
    assert len(np.unique(coins)) == len(coins)
