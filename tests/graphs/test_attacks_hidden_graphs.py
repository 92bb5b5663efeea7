"""Graphs and terms that hide in another data set, in a model or in a loss are refused."""

from dataclasses import dataclass
from functools import partial

import pytest
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, Subset, TensorDataset

import adamas
from adamas import rules
from adamas.graphs import NodeTerms
from tests.support.node_runs import (
    FEATURES,
    NODES,
    node_run,
    noisy_graph,
    terms_of,
)


class Called(Dataset):
    """A data set of a function."""

    def __init__(self, function, length):
        self.function, self.length = function, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.function(index)


@dataclass(slots=True)
class Slotted:
    """A data set without a dictionary."""

    terms: NodeTerms

    def __len__(self):
        return len(self.terms)

    def __getitem__(self, index):
        return self.terms[index]


def of_class(terms):
    """A data set that has terms as an attribute of its class."""
    return type("OfClass", (Called,), {"terms": terms, "__getitem__": lambda own, index: own.terms[index]})(
        None, len(terms)
    )


def nested(terms, depth):
    return nested(Subset(terms, range(len(terms))), depth - 1) if depth else terms


HIDDEN = {
    "method": lambda terms: Called(terms.__getitem__, len(terms)),
    "closure": lambda terms: Called(lambda index: terms[index], len(terms)),
    "partial": lambda terms: Called(partial(NodeTerms.__getitem__, terms), len(terms)),
    "slots": Slotted,
    "class": of_class,
    "nested": lambda terms: nested(terms, 6),
    "tensors": lambda terms: TensorDataset(*terms[:]),
    "list": lambda terms: [terms[place] for place in range(len(terms))],
}


@pytest.mark.parametrize("name", HIDDEN)
def test_terms_in_another_data_set_are_refused(name):
    with pytest.raises(TypeError, match=r"NodeTerms\(graph, max_degree=\.\.\.\)"):
        node_run(HIDDEN[name](terms_of()))


class WholeGraph(nn.Module):
    """Reads all messages of a graph, and answers for some of its nodes."""

    def __init__(self, graph=None):
        super().__init__()
        self.layer, self.graph = nn.Linear(FEATURES, 2), graph

    def forward(self, features, edges, nodes):
        return self.layer(features.index_add(0, edges[1], features[edges[0]])[nodes])


def run_on_numbers(model, loss):
    """A run whose examples are the numbers of nodes."""
    graph = noisy_graph()
    nodes = graph.train_nodes
    return adamas.make_private(
        *(model, rules.SGD(model.parameters()), TensorDataset(nodes, graph.labels[nodes]), loss),
        **{"batch_size": 40, "steps": 3, "noise_multiplier": 10.0, "delta": 1e-4, "progress": False},
    )


def test_a_loss_that_holds_a_graph_is_refused():
    graph = noisy_graph()

    def loss(model, batch):
        return F.cross_entropy(model(graph.features, graph.edges, batch[0]), batch[1], reduction="none")

    with pytest.raises(TypeError, match="NodeTerms"):
        run_on_numbers(WholeGraph(), loss)


def test_a_loss_that_holds_a_graph_of_pyg_is_refused():
    module = pytest.importorskip("torch_geometric.data")
    graph = noisy_graph()
    held = module.Data(x=graph.features, y=graph.labels, edge_index=graph.edges, train_mask=graph.train)

    def loss(model, batch):
        return F.cross_entropy(model(held.x, held.edge_index, batch[0]), batch[1], reduction="none")

    with pytest.raises(TypeError, match="NodeTerms"):
        run_on_numbers(WholeGraph(), loss)


def test_a_model_that_holds_a_graph_is_refused():
    def loss(model, batch):
        logits = model(model.graph.features, model.graph.edges, batch[0])
        return F.cross_entropy(logits, batch[1], reduction="none")

    with pytest.raises(TypeError, match="NodeTerms"):
        run_on_numbers(WholeGraph(noisy_graph()), loss)


class Claims:
    """Raises for an attribute that it does not have, as summaries of Weights & Biases do."""

    def __getattr__(self, name):
        raise KeyError(name)


class Compiled:
    """Has a descriptor in the place of its module's name, as classes of Cython may."""

    __module__ = property(lambda self: "elsewhere")


@pytest.mark.parametrize("kind", [Claims, Compiled])
def test_objects_of_odd_classes_are_looked_through(kind):
    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    model = nn.Embedding(NODES, 2)
    model.held = kind()
    assert run_on_numbers(model, loss).steps == 3
    model.held.graph = noisy_graph()
    with pytest.raises(TypeError, match="NodeTerms"):
        run_on_numbers(model, loss)
