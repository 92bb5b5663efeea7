"""Numbers of other kinds, and claims at the edge: none lowers epsilon, and bad ones are refused by name."""

import math

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import NeighboringRelation, dp_event

from adamas import data
from adamas.accounting.composition import composed_epsilon
from adamas.accounting.terms import SampledTermsDpEvent
from adamas.check import check
from adamas.data.graph import GraphData, both_directions, with_terms
from adamas.errors import UnsupportedError
from adamas.experiment.settings import Settings
from adamas.experiment.sweep import sweep
from adamas.graphs import NodeTerms, calibrate
from tests.support.node_runs import (
    finished,
    graph_with,
    node_run,
    noisy_graph,
    terms_of,
)

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
