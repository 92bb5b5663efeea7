"""Federated trainings from settings to files: what is refused, what is kept, what a restart finds."""

import json
import math
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from adamas.federated import ALGORITHMS, Blocks, NoAnswerError
from adamas.federated.settings import FederatedSettings
from adamas.federated.task import make_task
from adamas.federated.training import make_server, train
from tests.support import federated_blobs
from tests.support.federated_runs import blobs, lines, run, saved_state

# --- settings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "fedavg"}, "algorithm"),
        ({"algorithm_options": {"momentum": 1}}, "algorithm_options of dp-fedadamw among .* got 'momentum'"),
        ({"algorithm_options": {"blocks": None}}, "got 'blocks'"),
        ({"algorithm_options": {"lr": -1.0}}, "lr"),
        ({"unit": "user"}, "unit"),
        ({"accountant": "prv"}, "accountant"),
        ({"clients": 0}, "clients"),
        ({"rounds": 0}, "rounds"),
        ({"local_steps": 0}, "local_steps"),
        ({"batch_size": 0}, "batch_size"),
        ({"participation": 1.5}, "participation"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"dirichlet": 0.0}, "dirichlet"),
        ({"count_on_participation": True}, "seed=None with count_on_participation"),
        ({"count_on_participation": True, "unit": "client", "seed": None}, "count_on_participation=False"),
        ({"engine": "opacus"}, "engine"),
        ({"micro_batch_size": 0}, "micro_batch_size"),
        ({"least_examples": 9}, "least_examples=9 >= batch_size=10"),
        ({"task": "", "data": "imagenet", "model": "mlp"}, "data"),
        ({"task": "", "data": "digits", "model": "vgg"}, "model"),
        ({"task": "", "data": "digits", "model": "mlp", "model_options": {"depth": 9}}, "model_options"),
        ({"delta": 1.0}, "delta"),
        ({"epsilon": 1.0}, "exactly one of epsilon and noise_multiplier"),
        ({"noise_multiplier": None}, "exactly one of epsilon and noise_multiplier"),
        ({"noise_multiplier": None, "epsilon": -1.0}, "epsilon"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"data": "digits", "model": "mlp"}, "either task, a Python module, or both data and model"),
        ({"task": "", "data": "digits"}, "either task, a Python module, or both data and model"),
        ({"task": ""}, "either task, a Python module, or both data and model"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        blobs(**options)


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        ({"local_stepz": 1}, "local_stepz"),
        ({"algorithm-options": 1}, "algorithm-options"),
        ({"lr.x": 1}, "lr.x"),
    ],
)
def test_a_flat_configuration_has_the_names_of_settings(config, wrong):
    with pytest.raises(ValueError, match=re.escape(repr(wrong))):
        FederatedSettings.from_flat(config)


def test_settings_travel_as_text():
    settings = blobs(algorithm_options={"betas": [0.8, 0.99]})
    assert FederatedSettings.from_json(settings.to_json()) == settings
    assert settings.make_algorithm().betas == (0.8, 0.99)


def test_the_plan_is_that_of_the_client_with_the_fewest_records():
    plan = blobs(algorithm="dp-fedsam").plan([50, 40, 60, 70])
    assert plan.sampling_rate == 10 / 40
    assert plan.queries == 2
    assert plan.participation is None
    assert blobs(count_on_participation=True, seed=None).plan([50] * 4).participation == 0.5
    by_client = blobs(unit="client", algorithm="dp-fedsam").plan([50] * 4)
    assert (by_client.sampling_rate, by_client.queries) == (0.5, 1)


@pytest.mark.slow
def test_a_budget_becomes_noise():
    settings = blobs(noise_multiplier=None, epsilon=3.0)
    plan = settings.plan([40] * 4)
    noise = settings.noise(plan)
    assert plan.epsilon(noise) <= 3.0 < plan.epsilon(noise * 0.99)


# --- tasks ----------------------------------------------------------------------------------------------


def test_a_module_is_a_task_and_one_that_lacks_something_is_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "half_a_task.py").write_text("def make_model(): ...\nloss = 3\n")
    with pytest.raises(ValueError, match=r"'half_a_task' to define client_data, loss"):
        make_task(blobs(task="half_a_task"))
    with pytest.raises(ValueError, match=r"task='no_such_task' to be a Python module"):
        make_task(blobs(task="no_such_task"))
    task = make_task(blobs())
    assert len(task.client_data(2, 4)) == federated_blobs.EXAMPLES + 2
    assert task.make_blocks(task.make_model()) is None


def test_the_blocks_of_a_users_module_are_taken(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "task_with_blocks.py").write_text(
        "from tests.support.federated_blobs import client_data, loss, make_model\n"
        "from adamas.federated import Blocks\n"
        "make_blocks = Blocks.coordinates\n"
    )
    settings = blobs(task="task_with_blocks")
    server = make_server(settings, make_task(settings), [40, 41, 42, 43])
    assert server.state["second-moments"]["blocks"].shape == (15,)
    assert make_task(settings).test_data() is None
    other = make_server(blobs(algorithm="dp-fedavg", task="task_with_blocks"), make_task(settings), [40] * 4)
    assert isinstance(other.algorithm, ALGORITHMS["dp-fedavg"])


def test_a_data_set_is_spread_over_clients_the_same_way_everywhere():
    settings = blobs(task="", data="digits", model="mlp", dirichlet=0.3)
    task, again = make_task(settings), make_task(settings)
    counts = np.array(task.label_counts())
    assert counts.shape == (4, 10)
    assert counts.sum() == sum(len(task.client_data(number, 4)) for number in range(4))
    assert counts.sum(1).min() >= settings.batch_size
    more = int(counts.sum(1).min()) + 20
    fewest = make_task(blobs(task="", data="digits", model="mlp", dirichlet=0.3, least_examples=more))
    assert np.array(fewest.label_counts()).sum(1).min() >= more
    for number in range(4):
        for mine, others in zip(
            task.client_data(number, 4).tensors, again.client_data(number, 4).tensors, strict=True
        ):
            assert torch.equal(mine, others)
    first, second = task.make_model(), again.make_model()
    assert first is not task.make_model()
    for mine, others in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(mine, others)
    with pytest.raises(ValueError, match="clients=4"):
        task.client_data(0, 5)


# --- files ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_training_leaves_its_model_its_rounds_and_what_it_cost(tmp_path):
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


def test_counting_on_participation_is_named_and_nobody_learns_who_took_part(tmp_path):
    settings = blobs(count_on_participation=True, seed=None)
    result = run(settings, tmp_path)
    assert "counts on a random choice of clients that nobody knows (nested bound)" in result["privacy"]
    assert result["epsilon"] == pytest.approx(settings.plan([40]).epsilon(1.0))
    assert all(line.keys() == {"round", "test_accuracy"} for line in lines(tmp_path))
    assert "rounds_asked" not in result
    assert saved_state(tmp_path)["asked"] == [0] * 4


def test_a_training_without_noise_says_so(tmp_path):
    result = run(blobs(noise_multiplier=0.0), tmp_path)
    assert result["epsilon"] == "inf"
    assert not result["private"]
    assert "NOT PRIVATE" in result["privacy"]


def test_who_took_part_stays_private_for_the_unit_client(tmp_path):
    result = run(blobs(unit="client", algorithm="dp-fedavg", noise_multiplier=2.0), tmp_path)
    assert all(line.keys() == {"round", "test_accuracy"} for line in lines(tmp_path))
    assert "rounds_asked" not in result
    assert result["label_counts"] is None
    assert saved_state(tmp_path)["asked"] == [0] * 4
    assert "one client with all its records" in result["privacy"]
    assert math.isfinite(result["epsilon"])


class Stop(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dp-fedadamw", "dp-fedopt", "dp-fafed"])
def test_a_training_that_was_stopped_goes_on_as_if_it_had_not_been(algorithm, tmp_path):
    settings = blobs(algorithm=algorithm)
    whole = run(settings, tmp_path / "whole")

    def stop(line):
        if line["round"] == 2:
            raise Stop

    with pytest.raises(Stop):
        run(settings, tmp_path / "parts", progress=stop)
    assert not (tmp_path / "parts" / "result.json").exists()
    with (tmp_path / "parts" / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "ans')  # a line that was cut short
    parts = run(settings, tmp_path / "parts")
    assert parts == whole
    assert [line["round"] for line in lines(tmp_path / "parts")] == [1, 2, 3]
    mine, others = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(mine[name], others[name]) for name in mine)


def test_a_folder_of_another_or_of_a_finished_training_is_refused(tmp_path):
    def stop(line):
        raise Stop

    with pytest.raises(Stop):
        run(blobs(), tmp_path, progress=stop)
    with pytest.raises(ValueError, match=r"local_steps=3.*has one with 2"):
        run(blobs(local_steps=3), tmp_path)
    run(blobs(), tmp_path)
    with pytest.raises(ValueError, match="without a finished training"):
        run(blobs(), tmp_path)


def test_a_training_whose_clients_remember_cannot_go_on_without_them(tmp_path):
    def stop(line):
        raise Stop

    with pytest.raises(Stop):
        run(blobs(algorithm="dp-scaffold"), tmp_path, progress=stop)
    with pytest.raises(ValueError, match="clients of dp-scaffold keep state that a restart does not find"):
        run(blobs(algorithm="dp-scaffold"), tmp_path)


class Broken:
    """A transport that dies when clients are asked."""

    def sizes(self):
        return [40, 41, 42, 43]

    def ask(self, clients, records, round):
        raise Stop


def test_a_round_is_charged_on_disk_before_anybody_is_asked_and_the_budget_holds(tmp_path):
    settings = blobs(participation=1.0)
    task = make_task(settings)
    for times in (1, 2):
        with pytest.raises(Stop):
            train(settings, task, tmp_path, sizes=[40, 41, 42, 43], connect=lambda _: Broken())
        assert saved_state(tmp_path)["asked"] == [times] * 4
    result = run(settings, tmp_path)
    assert [line["round"] for line in lines(tmp_path)] == [3]  # the rounds that died are lost
    assert (result["rounds"], result["lost_rounds"]) == (3, 2)
    assert result["rounds_asked"] == [3] * 4
    assert result["epsilon"] == pytest.approx(settings.plan([40]).epsilon(1.0))


def test_a_damaged_state_is_refused(tmp_path):
    def stop(line):
        raise Stop

    with pytest.raises(Stop):
        run(blobs(), tmp_path, progress=stop)
    file = tmp_path / "state.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"state.safetensors is damaged .* also count what was released"):
        run(blobs(), tmp_path)


@pytest.mark.slow
def test_a_training_goes_on_with_the_same_clients_only(tmp_path):
    settings = blobs(noise_multiplier=None, epsilon=3.0)
    with pytest.raises(Stop):
        train(settings, make_task(settings), tmp_path, sizes=Broken().sizes(), connect=lambda _: Broken())
    with pytest.raises(ValueError, match=r"state with sizes=\[400, 400, 400, 400\], got \[40, 41, 42, 43\]"):
        train(settings, make_task(settings), tmp_path, sizes=[400] * 4, connect=lambda _: Broken())


def test_two_trainings_do_not_share_a_folder(tmp_path):
    def again(line):
        run(blobs(), tmp_path)

    with pytest.raises(RuntimeError, match="Another training is writing to"):
        run(blobs(), tmp_path, progress=again)


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
def test_a_delta_that_permits_publishing_somebody_is_refused_before_anything_runs(unit, delta, tmp_path):
    settings = blobs(unit=unit, delta=delta, algorithm="dp-fedavg")
    with pytest.raises(ValueError, match=r"delta=.* Lower delta"):
        run(settings, tmp_path)
    assert not (tmp_path / "state.safetensors").exists()


def test_clients_that_fail_are_named_and_if_all_fail_the_state_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("FAILING_CLIENTS", "1,3")
    settings = blobs(participation=1.0, rounds=2)
    result = run(settings, tmp_path / "some")
    for line in lines(tmp_path / "some"):
        assert line["left_out"] == {"1": "ArithmeticError", "3": "ArithmeticError"}
        assert line["answered"] == [0, 2]
    assert result["rounds_asked"] == [2] * 4
    monkeypatch.setenv("FAILING_CLIENTS", "0,1,2,3")
    with pytest.raises(NoAnswerError, match="client 0: ArithmeticError"):
        run(settings, tmp_path / "all")
    assert not (tmp_path / "all" / "result.json").exists()
    assert saved_state(tmp_path / "all")["asked"] == [1] * 4
    assert saved_state(tmp_path / "all")["round"] == saved_state(tmp_path / "all")["lost"] == 1


def test_an_upload_has_the_parameters_and_one_number_per_block(tmp_path):
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
