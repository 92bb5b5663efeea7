"""The command line, as a user calls it."""

import json
import math
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

import adamas
from adamas.accounting.ledger import Ledger
from adamas.data import load
from adamas.experiment.training import accuracy
from adamas.models import mlp
from tests.support.command_line import call

SIZES = ["--batch-size", "256", "--dataset-size", "60000"]
ONE = ["--noise-multiplier", "1"]
TRUNCATED = ["--sampling", "truncated-poisson", "--max-batch-size", "128"]
QUICK = ["--model", "linear", "--steps", "4", "--batch-size", "64", "--noise-multiplier", "1.5"]


def test_train_writes_result_model_and_ledger(capsys, tmp_path):
    out = tmp_path / "run"
    code, printed, _ = call(
        capsys,
        *("train", "--steps", "4", "--noise-multiplier", "1.5", "--seed", "3", "--out", out, "--json"),
    )
    assert code == 0
    result = json.loads((out / "result.json").read_text())
    assert result == json.loads(printed)
    assert result["steps"] == 4
    assert result["delta"] == 1e-5
    assert result["noise_multiplier"] == 1.5
    assert result["sampling_rate"] == 256 / 1438
    assert result["settings"]["rule"] == "adam-bc"
    assert result["settings"]["seed"] == 3
    assert "whoever knows it can remove the noise" in result["note"]
    expected = adamas.calibrate.epsilon(noise_multiplier=1.5, sampling_rate=256 / 1438, steps=4, delta=1e-5)
    assert result["epsilon"] == pytest.approx(expected)

    ledger = Ledger()
    ledger.load_state_dict(json.loads((out / "ledger.json").read_text()))
    assert ledger.epsilon(1e-5) == pytest.approx(expected)

    digits = load("digits")
    model = mlp(digits.input_shape, digits.classes)
    model.load_state_dict(load_file(out / "model.safetensors"))
    assert accuracy(model, digits.test) == result["test_accuracy"]


def test_accuracy_on_held_out_examples_is_not_called_test_accuracy(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = [*QUICK, "--schedule", "cosine", "--ema", "0.9", "--seed", "0"]
    code, printed, _ = call(capsys, "train", "--data", "digits/validation", *options)
    assert code == 0
    assert "held out" in printed
    assert "test accuracy" not in printed
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("digits-validation-linear-adam-bc-")
    settings = json.loads((folder / "result.json").read_text())["settings"]
    assert (settings["schedule"], settings["ema"]) == ("cosine", 0.9)


def test_a_seed_reproduces_the_model_and_a_secret_seed_is_not_written(capsys, tmp_path):
    for name in ("a", "b"):
        assert call(capsys, "train", *QUICK, "--seed", "1", "--out", str(tmp_path / name))[0] == 0
    assert call(capsys, "train", *QUICK, "--out", str(tmp_path / "c"))[0] == 0
    a, b, c = (load_file(tmp_path / name / "model.safetensors") for name in "abc")
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert not all(torch.equal(a[key], c[key]) for key in a)
    secret = json.loads((tmp_path / "c" / "result.json").read_text())
    assert secret["settings"]["seed"] is None
    assert "note" not in secret
    assert "seed" not in secret["privacy"]


def test_train_prints_epsilon_accuracy_and_files(capsys, tmp_path):
    out = tmp_path / "run"
    code, printed, _ = call(capsys, "train", *QUICK, "--out", str(out))
    assert code == 0
    for part in ("epsilon", "test accuracy", str(out)):
        assert part in printed


def test_any_argument_of_the_rule_can_be_set(capsys, tmp_path):
    code, printed, _ = call(
        capsys,
        *("train", *QUICK, "--rule", "adam", "--lr", "0.01", "--set", "betas=(0.8, 0.99)"),
        *("--set", "eps_placement=inside", "--out", str(tmp_path / "run"), "--json"),
    )
    assert code == 0
    options = json.loads(printed)["settings"]["rule_options"]
    assert options == {"lr": 0.01, "betas": [0.8, 0.99], "eps_placement": "inside"}


def test_no_noise_is_reported_as_no_privacy(capsys, tmp_path):
    arguments = ["train", "--model", "linear", "--steps", "2", "--noise-multiplier", "0", "--json"]
    code, printed, _ = call(capsys, *arguments, "--out", str(tmp_path / "run"))
    assert code == 0
    assert json.loads(printed)["epsilon"] == "inf"
    code, printed, _ = call(capsys, *arguments[:-1], "--out", str(tmp_path / "again"))
    assert code == 0
    assert "inf" in printed


def test_a_seed_may_be_large(capsys, tmp_path):
    code, _, _ = call(capsys, "train", *QUICK, "--seed", str(2**200), "--out", str(tmp_path / "run"))
    assert code == 0


def test_without_arguments_the_help_is_shown(capsys):
    code, printed, error = call(capsys)
    assert code == 0
    assert "train" in printed
    assert "error" not in error


def test_an_earlier_result_is_not_overwritten(capsys, tmp_path):
    out = tmp_path / "run"
    assert call(capsys, "train", *QUICK, "--out", str(out))[0] == 0
    before = (out / "result.json").read_text()
    code, _, message = call(capsys, "train", *QUICK, "--out", str(out))
    assert code == 2
    assert "--out" in message
    assert (out / "result.json").read_text() == before


def test_the_calculators_agree_with_the_published_values(capsys):
    code, printed, _ = call(capsys, "epsilon", "--noise-multiplier", "0.5", *SIZES, "--epochs", "5", "--json")
    assert code == 0
    assert json.loads(printed)["epsilon"] == pytest.approx(7.479, abs=5e-4)
    code, printed, _ = call(
        capsys,
        *("noise", "--epsilon", "7", "--sampling-rate", "0.02048", "--steps", "3430", "--accountant", "rdp"),
    )
    assert code == 0
    assert float(printed.split()[-1]) == pytest.approx(1.107, abs=1e-3)
    code, printed, _ = call(
        capsys,
        *("steps", "--epsilon", "8", "--noise-multiplier", "3", "--batch-size", "4096"),
        *("--dataset-size", "45000", "--accountant", "rdp", "--json"),
    )
    assert code == 0
    assert abs(json.loads(printed)["steps"] - 2480) <= 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--epsilon", "-1", "--epochs", "1"], "epsilon=-1"),
        (["train", "--epsilon", "abc", "--epochs", "1"], "--epsilon"),
        (["train", "--epsilon", "1"], "exactly one of epochs and steps"),
        (["train", "--steps", "1"], "exactly one of epsilon and noise_multiplier"),
        (["train", *QUICK, "--rule", "magic"], "'adam-bc'"),
        (["train", *QUICK, "--data", "magic"], "'digits'"),
        (["train", *QUICK, "--model", "magic"], "'mlp'"),
        (["train", *QUICK, "--set", "magic=1"], "floor"),
        (["train", *QUICK, "--set", "floor=0"], "floor"),
        (["train", *QUICK, "--lr", "-1"], "lr=-1"),
        (["train", *QUICK, "--delta", "0.1"], "--allow-large-delta"),
        (["train", *QUICK, "--batch-size", "5000"], "batch_size=5000"),
        (["epsilon", "--noise-multiplier", "1", "--sampling-rate", "2", "--steps", "1"], "sampling_rate=2"),
        (["epsilon", "--noise-multiplier", "1", "--steps", "1"], "--sampling-rate"),
        (["noise", "--epsilon", "1", "--sampling-rate", "0.1"], "--steps"),
        (["train", *QUICK, "--lr", "0.1", "--set", "lr=0.5"], "--lr"),
        (["train", *QUICK, "--accountant", "rdp", *TRUNCATED], "accountant='rdp'"),
        (["epsilon", *ONE, "--batch-size", "0", "--dataset-size", "9", "--epochs", "5"], "batch_size=0"),
        (["epsilon", *ONE, "--sampling-rate", "0.1", *SIZES, "--steps", "1"], "--sampling-rate"),
        (["epsilon", "--noise-multiplier", "0.001", *SIZES, "--steps", "10"], "noise_multiplier=0.001"),
        (["noise", "--epsilon", "10000", *SIZES, "--steps", "10"], "epsilon=10000"),
        (["noise", "--epsilon", "1", *SIZES, "--steps", "99999999999999999999"], "steps=9999"),
        (["epsilon"], "--noise-multiplier"),
        (["magic"], "magic"),
    ],
)
def test_an_error_gives_one_line_and_exit_code_2(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, printed, error = call(capsys, *arguments)
    assert code == 2
    assert printed == ""
    assert error.count("\n") == 1
    assert error.startswith("adamas: error: ")
    assert message in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.subprocess
def test_the_module_runs_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "adamas", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == adamas.__version__
    done = subprocess.run(
        [sys.executable, "-m", "adamas", "steps", "--epsilon", "nan"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_training_on_digits_learns_within_its_budget(capsys, tmp_path):
    code, printed, _ = call(
        capsys,
        *("train", "--rule", "adam-bc", "--lr", "3e-3", "--epsilon", "3", "--epochs", "30"),
        *("--seed", "1", "--out", str(tmp_path / "run"), "--json"),
    )
    assert code == 0
    result = json.loads(printed)
    assert result["epsilon"] <= 3.0
    assert result["test_accuracy"] > 0.88  # 92.5% when the test was written
    assert math.isclose(result["steps"], 180)
