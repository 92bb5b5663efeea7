"""Ways past the accounting of nodes: other kinds of numbers, other doors, changed terms and changed runs."""

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import NeighboringRelation, dp_event
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, Subset, TensorDataset

import adamas
from adamas import DataLedger, data, rules
from adamas.accounting.composition import composed_epsilon
from adamas.accounting.terms import SampledTermsDpEvent
from adamas.check import check
from adamas.data.graph import GraphData, both_directions, with_terms
from adamas.errors import UnsupportedError
from adamas.experiment.settings import Settings
from adamas.experiment.sweep import sweep
from adamas.graphs import Graph, NodeTerms, calibrate
from tests.support import distributed_ranks
from tests.support.node_runs import FEATURES, node_run, node_run_of_rank, noisy_graph

REMOVE = NeighboringRelation.REPLACE_SPECIAL


def terms_of(**options):
    return NodeTerms(noisy_graph(), **{"max_degree": 3} | options)


def graph_with(**changed):
    graph = noisy_graph()
    parts = {name: getattr(graph, name) for name in ("features", "labels", "edges", "train")}
    return Graph(**parts | changed)


def finished(run):
    list(run)
    return run.epsilon()


# --- numbers of NumPy ---------------------------------------------------------------------------------

overflows = pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")


@overflows
@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
def test_whole_numbers_of_numpy_are_accounted_for_like_others(sampling):
    # The sizes differ, so that no cached answer of one is that of the other.
    run = {"noise_multiplier": 32.0, "max_degree": 7, "steps": 100, "delta": 1e-6, "sampling": sampling}
    plain = calibrate.epsilon(nodes=90_941, batch_size=10_000, **run)
    other = calibrate.epsilon(nodes=np.int64(90_942), batch_size=np.int64(10_000), **run)
    assert other == pytest.approx(plain, rel=1e-3)


@pytest.mark.slow
@overflows
def test_a_batch_size_of_numpy_does_not_change_epsilon_or_the_noise():
    terms = terms_of(max_degree=8)
    assert finished(node_run(terms, batch_size=np.int64(41))) > 0.9 * finished(node_run(terms, batch_size=40))
    budget = {"epsilon": 1.0, "noise_multiplier": None}
    noisy, plain = (node_run(terms, batch_size=size, **budget) for size in (np.int64(39), 38))
    assert noisy.noise_multiplier == pytest.approx(plain.noise_multiplier, rel=0.1)


@overflows
def test_numbers_of_numpy_do_not_spoil_those_that_follow():
    SampledTermsDpEvent(203, np.int64(41), 9, 32.0, "poisson").probabilities()
    assert SampledTermsDpEvent(203, 41, 9, 32.0, "poisson").probabilities().sum() == pytest.approx(1)


@overflows
@pytest.mark.parametrize(
    "options",
    [
        {"max_degree": np.uint8(20), "hops": 2},
        {"max_degree": np.int8(20), "hops": 2},
        {"max_degree": 3, "hops": 2, "max_in_degree": np.uint8(100)},
    ],
)
def test_short_numbers_count_all_terms(options):
    plain = {name: int(value) for name, value in options.items()}
    assert terms_of(**options).terms_per_node == terms_of(**plain).terms_per_node


# --- graphs behind other doors ------------------------------------------------------------------------


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


# --- terms and runs that change -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"max_degree": 30}, "max_degree", 1),
        ({"hops": 2}, "hops", 1),
        ({"relation": "replace"}, "relation", "remove"),
        ({"max_in_degree": 25}, "max_in_degree", None),
    ],
)
def test_what_terms_were_made_with_does_not_change(options, name, value):
    terms = terms_of(**options)
    before = terms.terms_per_node, terms.protects
    with suppress(AttributeError):
        setattr(terms, name, value)
    assert (terms.terms_per_node, terms.protects) == before
    assert node_run(terms).loader.sampler.terms == before[0]


def test_terms_read_what_their_class_reads():
    terms, more = terms_of(max_degree=1, width=30), terms_of(max_degree=30)
    with suppress(AttributeError):
        terms.rows = more.rows
    with suppress(TypeError):
        run = node_run(terms)
        assert torch.equal(run.loader.fetch(np.arange(9))[1], terms_of(max_degree=1, width=30)[:9][1])


def test_the_way_of_sampling_does_not_change():
    sampler = node_run(sampling="fixed-size").loader.sampler
    before = sampler.event({0: [10.0]})
    with suppress(AttributeError):
        sampler.sampling = "poisson"
    assert sampler.event({0: [10.0]}) == before


@pytest.mark.parametrize("first", ["terms", "plain examples"])
def test_another_data_set_in_the_loader_of_a_run_is_refused(first):
    terms = terms_of(max_degree=1)
    graph = terms.graph
    nodes = graph.train_nodes
    alone = graph.features[nodes][:, None], torch.ones(len(nodes), 1).bool(), graph.labels[nodes]
    run = node_run(terms if first == "terms" else TensorDataset(*alone))

    def train_on_others():
        run.loader.dataset = terms_of(max_degree=30)
        list(run)

    with pytest.raises((AttributeError, RuntimeError), match="data"):
        train_on_others()
    assert run.steps_done == 0


def test_a_mask_that_changes_later_does_not_make_training_nodes_public():
    mask = noisy_graph().train.clone()
    terms = NodeTerms(graph_with(train=mask), max_degree=3)
    nodes = terms.nodes.clone()
    mask.zero_()
    with pytest.raises(ValueError, match="training nodes"):
        terms.evaluation(nodes)


def test_releases_that_only_a_journal_knows_keep_their_price(tmp_path):
    # The file is written before the first step, and the six releases after it are in the journal alone.
    files = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 8}
    died = node_run(terms_of(max_degree=30), accountant="rdp", **files)
    for step in died:
        if step.number == 6:
            break
    with suppress(ValueError):
        resumed = node_run(terms_of(max_degree=1), accountant="rdp", resume=True, **files)
        assert resumed.epsilon() >= died.epsilon()


@pytest.mark.slow
def test_a_data_ledger_does_not_forget_releases_on_other_terms(tmp_path):
    ledger = DataLedger.create(tmp_path / "ledger.json", epsilon=100.0, delta=1e-3, relation=REMOVE)
    files = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 8, "data_ledger": ledger}
    died = node_run(terms_of(max_degree=30), **files)
    for step in died:
        if step.number == 6:
            break
    spent = died.ledger.epsilon(1e-3)
    with suppress(ValueError):
        finished(node_run(terms_of(max_degree=1), resume=True, **files))
    assert ledger.epsilon() >= spent


# Two releases on one batch make one event only if a node changes the same terms in both.
@pytest.mark.parametrize(
    ("saved", "resumed"),
    [
        ({"seed": 1}, {"seed": 2}),
        ({"edges": "uniform"}, {"edges": "published"}),
        ({"inductive": True}, {"inductive": False}),
        ({"max_degree": 6}, {"max_degree": 2, "hops": 2}),
        ({"max_degree": 26}, {"max_degree": 1, "max_in_degree": 25}),
    ],
)
def test_a_checkpoint_continues_with_the_same_terms_only(saved, resumed, tmp_path):
    files = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 5}
    for step in node_run(terms_of(**saved), accountant="rdp", **files):
        if step.number == 7:
            break
    with pytest.raises(ValueError, match="Expected a state with"):
        node_run(terms_of(**resumed), accountant="rdp", resume=True, **files)


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """Starts two ranks."""
    made = distributed_ranks.Pool(tmp_path_factory.mktemp("ranks"))
    yield made
    made.close()


@pytest.mark.subprocess
@pytest.mark.parametrize(
    "odd", [{"max_degree": 30}, {"seed": 1}, {"inductive": False}, {"relation": "replace"}]
)
def test_ranks_with_other_terms_are_refused(pool, odd):
    assert pool(node_run_of_rank, {}) == [4, 4]
    for failure in pool(node_run_of_rank, odd):
        assert isinstance(failure, distributed_ranks.Failure)
        assert failure.kind == "DistributedError"


# --- what is claimed ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.5, 0.001])
@pytest.mark.parametrize("noise", [0.02, 0.025])
def test_a_mixture_of_two_gaussians_costs_what_a_sampled_gaussian_costs(noise, rate):
    mixture = dp_event.MixtureOfGaussiansDpEvent(noise, (0.0, 1.0), (1 - rate, rate))
    sampled = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    cost, expected = (composed_epsilon([(one, 1)], 1e-5) for one in (mixture, sampled))
    assert cost >= expected * (1 - 1e-6)


def test_delta_is_below_one_over_all_nodes_that_are_protected():
    # Without inductive, features of all 300 nodes are read, and protected.
    graph = graph_with(train=torch.arange(300) < 60)
    with pytest.raises(ValueError, match="delta"):
        node_run(NodeTerms(graph, max_degree=3, inductive=False), delta=1 / 100, batch_size=20)


@with_terms
def small_graph():
    graph = noisy_graph()
    held_out = (~graph.train).nonzero().flatten()
    splits = (graph.train_nodes, held_out[::2], held_out[1::2])
    edges = both_directions(graph.edges.T.tolist())
    return GraphData.of("small", graph.features, graph.labels, edges, splits, classes=2)


def test_a_sweep_does_not_choose_by_predictions_that_read_training_nodes(tmp_path, monkeypatch):
    monkeypatch.setitem(data.DATASETS, "pubmed", small_graph)
    settings = Settings(
        data="pubmed/validation",
        model="gcn",
        rule="sgd",
        data_options={"max_degree": 3, "neighbors": "all"},
        model_options={"hidden": 8},
        **{"batch_size": 40, "steps": 2, "epsilon": 6.0, "delta": 1e-4, "accountant": "rdp"},
    )
    with pytest.raises(ValueError, match="neighbors"):
        sweep(settings, {"lr": [0.1, 0.2]}, tmp_path / "sweep")


@pytest.mark.slow
def test_checks_do_not_take_missing_features_for_changed_terms():
    features = noisy_graph().features.clone()
    features[::10] = math.nan

    def make_run():
        return node_run(NodeTerms(graph_with(features=features), max_degree=3))

    rows = {row.name: row.verdict for row in check(make_run, examples=3, progress=False)}
    assert rows["planted nodes"] == "pass"


# --- input that is refused by name --------------------------------------------------------------------


@pytest.mark.parametrize("noise", [math.nan, math.inf])
def test_noise_that_is_no_number_is_refused_by_name(noise):
    with pytest.raises(ValueError, match="noise_multiplier"):
        SampledTermsDpEvent(100, 10, 4, noise, "poisson")


def test_a_relation_without_a_bound_is_named():
    event = SampledTermsDpEvent(100, 10, 4, 3.0, "poisson")
    with pytest.raises(UnsupportedError, match="relation"):
        composed_epsilon([(event, 1)], 1e-5, "pld", NeighboringRelation.ADD_OR_REMOVE_ONE)


@pytest.mark.parametrize(("name", "value"), [("inductive", "false"), ("hops", 1.0), ("hops", True)])
def test_options_of_another_type_are_refused_by_name(name, value):
    with pytest.raises((TypeError, ValueError), match=name):
        terms_of(**{name: value})


@pytest.mark.parametrize(
    ("nodes", "options", "name"),
    [
        ([0, 1], {}, "nodes"),
        (torch.tensor([0, 1]), {"width": -1}, "width"),
        (torch.tensor([0, 1]), {"width": 2.5}, "width"),
    ],
)
def test_predictions_refuse_input_by_name(nodes, options, name):
    with pytest.raises((TypeError, ValueError), match=name):
        terms_of().evaluation(nodes, "all", **options)[0]


def unlabelled():
    labels = noisy_graph().labels.clone()
    labels[::10] = -1
    return labels


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"labels": unlabelled()}, "label"),
        ({"features": noisy_graph().features.to_sparse()}, "dense"),
        ({"features": noisy_graph().features.to("meta")}, "device"),
    ],
    ids=["labels", "sparse", "device"],
)
def test_graphs_that_cannot_be_trained_on_are_refused_by_name(changed, message):
    with pytest.raises(ValueError, match=message):
        NodeTerms(graph_with(**changed), max_degree=3)
