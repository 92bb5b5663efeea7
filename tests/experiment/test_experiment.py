"""One training run, from settings to files: the saved weights are those that were evaluated."""

import json

import pytest
import torch
from safetensors.torch import load_file

from adamas import calibrate, data
from adamas.experiment import training as experiment
from adamas.experiment.training import Settings, accuracy, initial_model, private_run, task, train_and_save
from tests.support.small_trainings import quick

BASE = {"data": "digits", "model": "linear", "rule": "adam", "batch_size": 256, "delta": 1e-5, "seed": 0}
QUICK = BASE | {"noise_multiplier": 1.0, "steps": 12, "rule_options": {"lr": 0.05}}


@pytest.mark.parametrize("ema", [None, 0.5])
def test_the_accuracy_is_that_of_the_saved_weights(tmp_path, ema):
    settings = Settings(**QUICK, ema=ema)
    result = train_and_save(settings, tmp_path, progress=False)
    digits = data.load("digits")
    model = initial_model(settings, digits)
    model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert accuracy(model, digits.test) == result["test_accuracy"]


def test_averaged_weights_differ_from_the_last_ones(tmp_path):
    weights = []
    for name, ema in (("last", None), ("averaged", 0.9)):
        train_and_save(Settings(**QUICK, ema=ema), tmp_path / name, progress=False)
        weights.append(load_file(tmp_path / name / "model.safetensors")["1.weight"])
    assert not torch.allclose(*weights)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", [1, 1, 1, 1]),
        ("linear", [1, 0.75, 0.5, 0.25]),
        ("cosine", [1, 0.8536, 0.5, 0.1464]),
    ],
)
def test_the_learning_rate_follows_the_schedule(schedule, factors):
    settings = Settings(**(QUICK | {"steps": 4, "schedule": schedule}))
    _, model, digits = task(settings)
    run = private_run(settings, model, digits, progress=False)
    seen = []
    for batch in run.batches():
        seen.append(run.rule.param_groups[0]["lr"] / 0.05)
        run.privatize(batch).write_to(run.rule)
        run.rule.step()
        if run.scheduler is not None:
            run.scheduler.step()
    assert seen == pytest.approx(factors, abs=1e-4)


def test_a_schedule_over_epochs_ends_with_them():
    settings = Settings(**BASE, noise_multiplier=1.0, epochs=2, schedule="linear")
    _, model, digits = task(settings)
    run = private_run(settings, model, digits, progress=False)
    for _ in run:
        pass
    assert run.steps == 12  # 1,438 examples, 256 at a time
    assert run.rule.param_groups[0]["lr"] == pytest.approx(0)


def test_validation_examples_come_from_the_training_set():
    _, _, held_out = task(Settings(**(QUICK | {"data": "digits/validation"})))
    whole = data.load("digits")
    assert len(held_out.train) + len(held_out.test) == len(whole.train)
    test = {tuple(x.flatten().tolist()) for x, _ in whole.test}
    assert not [x for x, _ in held_out.test if tuple(x.flatten().tolist()) in test]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "letters"}, "data='letters'"),
        ({"model": "cube"}, "model='cube'"),
        ({"rule": "eve"}, "rule='eve'"),
        ({"schedule": "late"}, "schedule='late'"),
        ({"rule_options": {"params": 1}}, "rule_options among"),
        ({"model_options": {"hidden": 3}}, "model_options among"),
        ({"data_options": {"length": 3}}, "data_options among"),
    ],
)
def test_settings_are_checked_when_they_are_made(change, message):
    with pytest.raises(ValueError, match=message):
        Settings(**(QUICK | change))


def test_published_weights_are_fetched_only_on_request(monkeypatch, tmp_path):
    def fetched():
        raise AssertionError

    monkeypatch.setitem(experiment.PUBLISHED_WEIGHTS, "minilm", fetched)
    settings = Settings(**(QUICK | {"model": "minilm", "model_options": {"weights": None}}))
    texts = data.Data("texts", data.load("digits").train, data.load("digits").test, (8,), 2)
    assert initial_model(settings, texts).frozen is not None
    with pytest.raises(AssertionError):
        initial_model(Settings(**(QUICK | {"model": "minilm"})), texts)


def test_the_result_holds_the_settings(tmp_path):
    train_and_save(Settings(**QUICK), tmp_path, progress=False)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["settings"]["rule_options"] == {"lr": 0.05}
    assert result["settings"]["schedule"] == "constant"


def test_training_stops_at_its_budget(tmp_path):
    result = train_and_save(quick(schedule="cosine", max_epsilon=2.0), tmp_path / "x")
    assert result["epsilon"] <= 2.0
    assert result["steps"] == calibrate.steps(
        epsilon=2.0,
        delta=1e-5,
        noise_multiplier=1.0,
        sampling_rate=result["sampling_rate"],
        accountant="rdp",
    )
