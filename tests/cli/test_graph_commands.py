"""Graphs on the command line: training, calculators, checks and audits of nodes."""

import json

import pytest
import torch

from adamas import data
from adamas.data.graph import GraphData, both_directions, with_terms
from adamas.graphs import calibrate
from tests.support.command_line import call
from tests.support.node_runs import noisy_graph


def answer_of(capsys, *arguments):
    """Returns the JSON that a command prints."""
    code, printed, errors = call(capsys, *arguments, "--json")
    assert code == 0, errors
    return json.loads(printed)


@with_terms
def small_graph(*, split="public"):
    graph = noisy_graph()
    nodes = torch.arange(graph.nodes)
    held_out = nodes[~graph.train]
    splits = (nodes[graph.train], held_out[::2], held_out[1::2])
    edges = both_directions(graph.edges.T.tolist())
    return GraphData.of("small", graph.features, graph.labels, edges, splits, classes=2)


@pytest.fixture
def small(monkeypatch):
    """Puts a small graph in the place of PubMed."""
    monkeypatch.setitem(data.DATASETS, "pubmed", small_graph)


TRAIN = ["train", "--data", "pubmed", "--model", "gcn", "--model-option", "hidden=8", "--batch-size", "40"]
TRAIN += ["--steps", "3", "--noise-multiplier", "9", "--delta", "1e-4", "--seed", "0"]


def test_a_graph_trains_with_a_largest_degree(small, tmp_path, capsys):
    result = answer_of(capsys, *TRAIN, "--max-degree", "3", "--out", tmp_path / "run")
    assert result["settings"]["data_options"] == {"max_degree": 3}
    assert "removing one node" in result["privacy"]
    assert 0 < result["epsilon"] < 6
    assert 0 <= result["test_accuracy"] <= 1


def test_hops_reach_data_and_model(small, tmp_path, capsys):
    options = ["--max-degree", "2", "--hops", "2", "--data-option", "width=3"]
    settings = answer_of(capsys, *TRAIN, *options, "--out", tmp_path / "run")["settings"]
    assert settings["data_options"] == {"max_degree": 2, "hops": 2, "width": 3}
    assert settings["model_options"] == {"hidden": 8, "hops": 2}


def test_a_result_says_that_predictions_read_training_nodes(small, tmp_path, capsys):
    options = ["--max-degree", "3", "--data-option", "neighbors=all", "--out", tmp_path / "run"]
    assert "read training nodes without noise" in answer_of(capsys, *TRAIN, *options)["privacy"]


def test_a_model_that_ignores_the_graph_trains_on_plain_nodes(small, tmp_path, capsys):
    arguments = [word if word != "gcn" else "node-mlp" for word in TRAIN]
    result = answer_of(capsys, *arguments, "--out", tmp_path / "run")
    assert "adding or removing one record" in result["privacy"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--data", "digits", "--max-degree", "3"], "--max-degree for a graph only"),
        (["train", "--data", "pubmed", "--data-option", "depth=3"], "--data-option NAME=VALUE"),
        (
            ["train", "--data", "pubmed", "--max-degree", "3", "--data-option", "max_degree=4"],
            "max_degree once",
        ),
        (
            ["train", "--data", "pubmed", "--model", "gcn", "--max-degree", "3", "--data-option", "hops=2"],
            "the same hops, got 2 and 1",
        ),
        (["train", "--model-option", "depth=3"], "--model-option NAME=VALUE"),
        (["epsilon", "--noise-multiplier", "1", "--nodes", "10", "--steps", "1"], "--nodes, --max-degree"),
        (["noise", "--epsilon", "1", "--max-degree", "3", "--steps", "1"], "--nodes, --max-degree"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments, message, capsys):
    code, _, errors = call(capsys, *arguments)
    assert code == 2
    assert message in errors.replace("\n", " ")


SIZES = {"nodes": 90941, "batch_size": 10000, "max_degree": 7}
WORDS = ["--nodes", "90941", "--batch-size", "10000", "--max-degree", "7", "--delta", "1e-6"]


def test_epsilon_of_nodes(capsys):
    words = ["epsilon", *WORDS, "--noise-multiplier", "32", "--steps", "100"]
    answer = answer_of(capsys, *words)
    assert answer["epsilon"] == calibrate.epsilon(noise_multiplier=32.0, steps=100, delta=1e-6, **SIZES)
    assert "32 clipping norms, 2 in the papers' unit of 16" in call(capsys, *words)[1]


def test_noise_and_steps_of_nodes_keep_the_budget(capsys):
    budget = ["--epsilon", "3", "--accountant", "rdp"]
    z = answer_of(capsys, "noise", *WORDS, *budget, "--steps", "100")["noise_multiplier"]
    run = {"noise_multiplier": z, "delta": 1e-6, "accountant": "rdp", **SIZES}
    assert calibrate.epsilon(steps=100, **run) <= 3
    steps = answer_of(capsys, "steps", *WORDS, *budget, "--noise-multiplier", z)["steps"]
    assert steps >= 100
    assert calibrate.epsilon(steps=steps, **run) <= 3 < calibrate.epsilon(steps=steps + 1, **run)


@pytest.mark.audits
def test_checks_and_audits_of_a_run_on_nodes(capsys):
    function = "tests.support.node_runs:node_run"
    rows = answer_of(capsys, "check", function, "--examples", "2", "--no-progress")["rows"]
    assert [row["verdict"] for row in rows if row["name"] == "planted nodes"] == ["pass"]
    audit = answer_of(capsys, "audit", function, "--seed", "0", "--no-progress")
    assert audit["verdict"] != "fail"
