"""Graphs of PyTorch Geometric, with the real package."""

import pytest
import torch

from adamas.graphs import Graph, NodeTerms
from tests.support.node_runs import node_run, noisy_graph

data_module = pytest.importorskip("torch_geometric.data")


def pyg_of(graph, **changed):
    given = {"x": graph.features, "y": graph.labels, "edge_index": graph.edges, "train_mask": graph.train}
    return data_module.Data(**given | changed)


def test_data_is_the_same_as_its_tensors():
    graph = noisy_graph()
    terms = NodeTerms.from_pyg(pyg_of(graph), max_degree=3)
    own = NodeTerms(graph, max_degree=3)
    assert all(torch.equal(a, b) for a, b in zip(terms[:], own[:], strict=True))
    assert len(list(node_run(terms, steps=2))) == 2


def test_messages_go_the_way_of_pyg():
    conv = pytest.importorskip("torch_geometric.nn").SimpleConv(aggr="sum")
    graph = noisy_graph()
    graph = Graph(graph.features, graph.labels, graph.edges[:, :500], torch.ones(graph.nodes).bool())
    received = conv(graph.features, torch.unique(graph.edges[:, graph.edges[0] != graph.edges[1]], dim=1))
    features, _, _ = NodeTerms(graph, max_degree=graph.nodes, width=50)[:]
    torch.testing.assert_close(features[:, 1:].sum(1), received)


def test_labels_with_a_column_are_taken():
    graph = noisy_graph()
    terms = NodeTerms.from_pyg(pyg_of(graph, y=graph.labels[:, None]), max_degree=3)
    assert torch.equal(terms[:][2], graph.labels[graph.train])


@pytest.mark.parametrize("missing", ["x", "y", "edge_index", "train_mask"])
def test_what_is_missing_is_named(missing):
    with pytest.raises(TypeError, match=f"has no {missing}"):
        NodeTerms.from_pyg(pyg_of(noisy_graph(), **{missing: None}), max_degree=3)


def test_several_splits_are_refused():
    graph = noisy_graph()
    with pytest.raises(ValueError, match="several splits"):
        NodeTerms.from_pyg(pyg_of(graph, train_mask=graph.train[:, None].repeat(1, 10)), max_degree=3)


def test_data_is_refused_where_terms_are_needed():
    data = pyg_of(noisy_graph())
    with pytest.raises(TypeError, match="from_pyg"):
        NodeTerms(data, max_degree=3)
    for given in (data, [data]):
        with pytest.raises(TypeError, match="NodeTerms"):
            node_run(given)
