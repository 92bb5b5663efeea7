"""Federated trainings: the files they leave, the privacy they state, and the clients that fail."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from adamas.federated import Blocks, NoAnswerError
from adamas.federated.task import make_task
from adamas.federated.training import make_server
from tests.support import federated_blobs
from tests.support.federated_runs import blobs, lines, run, saved_state


@pytest.mark.slow
def test_a_training_writes_its_model_rounds_and_cost(tmp_path):
    settings = blobs(rounds=12, local_steps=5, algorithm_options={"lr": 0.05}, noise_multiplier=0.6)
    seen = []
    result = run(settings, tmp_path, progress=seen.append)
    assert json.loads((tmp_path / "result.json").read_text()) == result
    assert lines(tmp_path) == seen
    assert [line["round"] for line in seen] == list(range(1, 13))
    assert all(len(line["answered"]) == 2 and not line["left_out"] for line in seen)
    model = federated_blobs.make_model()
    model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    test = federated_blobs.test_data()
    right = (model(test.tensors[0]).argmax(1) == test.tensors[1]).double().mean()
    assert result["test_accuracy"] == pytest.approx(float(right))
    assert right > 0.6  # chance is a third
    worst = max(
        settings.plan([size]).epsilon(0.6, rounds=rounds)
        for size, rounds in zip(result["sizes"], result["rounds_asked"], strict=True)
    )
    assert result["epsilon"] == pytest.approx(worst, rel=1e-9)
    assert "one record of one client" in result["privacy"]
    assert "nested" not in result["privacy"]


def test_a_bound_that_counts_on_participation_says_so_and_hides_who_took_part(tmp_path):
    settings = blobs(count_on_participation=True, seed=None)
    result = run(settings, tmp_path)
    assert "counts on a random choice of clients that nobody knows (nested bound)" in result["privacy"]
    assert result["epsilon"] == pytest.approx(settings.plan([40]).epsilon(1.0))
    assert all(line.keys() == {"round", "test_accuracy"} for line in lines(tmp_path))
    assert "rounds_asked" not in result
    assert saved_state(tmp_path)["asked"] == [0] * 4


def test_a_training_without_noise_says_that_it_is_not_private(tmp_path):
    result = run(blobs(noise_multiplier=0.0), tmp_path)
    assert result["epsilon"] == "inf"
    assert not result["private"]
    assert "NOT PRIVATE" in result["privacy"]


def test_with_unit_client_the_files_hide_who_took_part(tmp_path):
    result = run(blobs(unit="client", algorithm="dp-fedavg", noise_multiplier=2.0), tmp_path)
    assert all(line.keys() == {"round", "test_accuracy"} for line in lines(tmp_path))
    assert "rounds_asked" not in result
    assert result["label_counts"] is None
    assert saved_state(tmp_path)["asked"] == [0] * 4
    assert "one client with all its records" in result["privacy"]
    assert math.isfinite(result["epsilon"])


def test_a_model_with_tied_weights_is_saved(tmp_path, monkeypatch):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = nn.Linear(4, 4)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))

    monkeypatch.setattr(federated_blobs, "make_model", Tied)
    run(blobs(), tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert torch.equal(saved["first.weight"], saved["second.weight"])


@pytest.mark.parametrize(("unit", "delta"), [("record", 1 / 43), ("client", 1 / 4)])
def test_a_delta_above_one_over_the_units_is_refused_before_training(unit, delta, tmp_path):
    settings = blobs(unit=unit, delta=delta, algorithm="dp-fedavg")
    with pytest.raises(ValueError, match=r"delta=.* Lower delta"):
        run(settings, tmp_path)
    assert not (tmp_path / "state.safetensors").exists()


def test_failing_clients_are_named_and_if_all_fail_the_state_is_saved(tmp_path, monkeypatch):
    monkeypatch.setenv("FAILING_CLIENTS", "1,3")
    settings = blobs(participation=1.0, rounds=2)
    result = run(settings, tmp_path / "some")
    for line in lines(tmp_path / "some"):
        assert line["left_out"] == {"1": "ArithmeticError", "3": "ArithmeticError"}
        assert line["answered"] == [0, 2]
    assert result["rounds_asked"] == [2] * 4
    monkeypatch.setenv("FAILING_CLIENTS", "0,1,2,3")
    with pytest.raises(NoAnswerError, match=r"Round 0 has no update that can be used\. client 0: Arith"):
        run(settings, tmp_path / "all")
    assert not (tmp_path / "all" / "result.json").exists()
    assert saved_state(tmp_path / "all")["asked"] == [1] * 4
    assert saved_state(tmp_path / "all")["round"] == saved_state(tmp_path / "all")["lost"] == 1


def test_the_server_keeps_one_second_moment_per_block_or_per_coordinate():
    settings = blobs(task="", data="digits", model="mlp")
    task = make_task(settings)
    numbers = {}
    for aggregation in ("blocks", "coordinates"):
        server = make_server(
            blobs(task="", data="digits", model="mlp", algorithm_options={"aggregation": aggregation}),
            task,
            [100] * 4,
        )
        parameters, moments = server.state["parameters"], server.state["second-moments"]
        numbers[aggregation] = [sum(x.numel() for x in part.values()) for part in (parameters, moments)]
    d = sum(p.numel() for p in task.make_model().parameters())
    assert numbers == {"blocks": [d, len(Blocks.of(task.make_model()))], "coordinates": [d, d]}
