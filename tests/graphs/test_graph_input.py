"""Bad graphs are refused with the name and the remedy, and so are graphs that did not become terms."""

import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from adamas.graphs import Graph, NodeTerms
from tests.support.node_runs import node_run, noisy_graph

N = 5


def parts(**changed):
    given = {
        "features": torch.randn(N, 2),
        "labels": torch.zeros(N, dtype=torch.int64),
        "edges": torch.tensor([[0, 1, 2], [1, 2, 0]]),
        "train": torch.ones(N, dtype=torch.bool),
    }
    return given | changed


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"edges": torch.tensor([[0, 1], [1, 5]])}, ValueError, r"edges\[:, 1\] is \[1, 5\]"),
        ({"edges": torch.tensor([[0, -1], [1, 2]])}, ValueError, r"edges\[:, 1\] is \[-1, 2\]"),
        ({"edges": torch.tensor([[0, 1, 2]])}, ValueError, r"edges of shape \(2, edges\)"),
        ({"edges": torch.zeros(2, 3)}, ValueError, "int64"),
        ({"train": torch.ones(4, dtype=torch.bool)}, ValueError, r"train of shape \(5,\)"),
        ({"train": torch.ones(N)}, ValueError, "train of shape"),
        ({"train": torch.zeros(N, dtype=torch.bool)}, ValueError, "no training node"),
        ({"labels": torch.zeros(4, dtype=torch.int64)}, ValueError, r"labels of shape \(5,\)"),
        ({"labels": torch.zeros(N)}, ValueError, "labels"),
        ({"features": torch.ones(N, 2, dtype=torch.int64)}, ValueError, r"\.float\(\)"),
        ({"features": torch.randn(N)}, ValueError, "features of shape"),
        ({"features": [[1.0]] * N}, TypeError, "features to be a tensor"),
    ],
)
def test_a_graph_that_does_not_fit_together_is_refused(changed, error, message):
    with pytest.raises(error, match=message):
        Graph(**parts(**changed))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_degree": 0}, "max_degree=0"),
        ({"max_degree": 2, "hops": 3}, "hops=3"),
        ({"max_degree": 2, "width": 0}, "width=0"),
        ({"max_degree": 2, "edges": "first"}, "edges='first'"),
        ({"max_degree": 2, "relation": "add"}, "relation='add'"),
        ({"max_degree": 100, "hops": 2}, "Lower max_degree"),
        ({"max_degree": 2, "max_in_degree": 0}, "max_in_degree=0"),
        ({"max_degree": 2, "max_in_degree": 3, "relation": "replace"}, "relation='remove'"),
        ({"max_degree": 2, "max_in_degree": 3, "edges": "published"}, "edges='uniform'"),
    ],
)
def test_options_that_no_terms_can_have_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        NodeTerms(Graph(**parts()), **options)


def test_more_lists_than_stated_are_refused():
    star = torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]])
    with pytest.raises(ValueError, match="one is on 4"):
        NodeTerms(Graph(**parts(edges=star)), max_degree=1, max_in_degree=3)


class Wrapped(Dataset):
    """A data set of a user's, which hides terms behind a view."""

    def __init__(self, terms):
        self.inner = {"terms": terms}

    def __len__(self):
        return len(self.inner["terms"])

    def __getitem__(self, index):
        return self.inner["terms"][index]


class Renamed(NodeTerms):
    """A subclass could override what terms read."""


def wrappers():
    terms = NodeTerms(noisy_graph(), max_degree=3)
    return {
        "graph": noisy_graph(),
        "subset": Subset(terms, range(50)),
        "two": ConcatDataset([terms, terms]),
        "wrapped": Wrapped(terms),
        "evaluation": terms.evaluation(~terms.graph.train),
        "subclass": Renamed(noisy_graph(), max_degree=3),
    }


@pytest.mark.parametrize("name", wrappers())
def test_a_graph_without_terms_is_refused_with_the_remedy(name):
    with pytest.raises(TypeError, match=r"NodeTerms\(graph, max_degree=\.\.\.\)"):
        node_run(wrappers()[name])


def test_plain_examples_of_nodes_are_taken():
    graph = noisy_graph()
    data = TensorDataset(graph.features[:, None], graph.train[:, None], graph.labels)
    assert len(list(node_run(data, steps=2))) == 2


@pytest.mark.parametrize("sampling", ["shuffled", "truncated-poisson"])
def test_sampling_without_a_bound_for_nodes_is_refused(sampling):
    options = {"max_batch_size": 80} if sampling == "truncated-poisson" else {}
    with pytest.raises(ValueError, match=f"sampling='{sampling}' among"):
        node_run(sampling=sampling, **options)


def test_batches_of_a_fixed_size_are_for_terms_only():
    graph = noisy_graph()
    data = TensorDataset(graph.features[:, None], graph.train[:, None], graph.labels)
    with pytest.raises(ValueError, match="'fixed-size', which is for NodeTerms"):
        node_run(data, sampling="fixed-size")
