"""Failures after the last step: the trained model is kept, or the message says how to get it again."""

import json
import resource
import stat
import tempfile

import pytest
from safetensors.torch import load_file

from adamas.experiment import sweep
from adamas.experiment import training as experiment
from adamas.run.checkpoint import Checkpoints
from tests.support.command_line import call
from tests.support.small_trainings import (
    DIAGNOSED,
    RESULTS,
    SAVED,
    STEPS,
    TRAIN,
    in_child,
    make_ledger,
    named,
    quick,
    result_of,
)


def after_training(monkeypatch, action):
    """Calls `action` after the last step, before the files are written."""
    original = experiment.accuracy

    def accuracy(*arguments):
        action()
        return original(*arguments)

    monkeypatch.setattr(experiment, "accuracy", accuracy)


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], SAVED], ids=["plain", "with checkpoints"])
@pytest.mark.parametrize("name", RESULTS)
def test_results_that_the_folder_refuses_at_the_end_are_kept_elsewhere(
    name, more, tmp_path, refuge, whole, monkeypatch, capsys
):
    ledger = make_ledger(tmp_path / "data.ledger")
    out = tmp_path / "out"
    after_training(monkeypatch, lambda: (out / name).mkdir())
    code, printed, error = call(capsys, *TRAIN, *more, "--out", out, "--data-ledger", ledger.path)
    assert code == 2
    assert printed == ""
    assert error.count("\n") == 1
    (place,) = refuge.glob("adamas-*")
    assert str(place) in error
    assert "Is a directory" in error
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert named(place) == RESULTS
    assert result_of(place) == result_of(whole / "out")
    for file in ("ledger.json", "model.safetensors"):
        assert (place / file).read_bytes() == (whole / "out" / file).read_bytes()
    (spending,) = ledger.spendings()
    assert spending.finished
    if more:  # resuming completes the folder and spends nothing more
        monkeypatch.undo()
        (out / name).rmdir()
        assert call(capsys, *TRAIN, *more, "--out", out, "--data-ledger", ledger.path)[0] == 0
        assert result_of(out) == result_of(whole / "out")
        assert ledger.spendings() == [spending]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (SAVED, "repeat the command with --resume"),
        ([], "with the same seed the model will be the same"),
    ],
    ids=["with checkpoints", "with a seed"],
)
def test_a_disk_that_is_full_at_the_end_is_reported_with_the_remedy(
    more, message, tmp_path, refuge, whole, monkeypatch
):
    ledger = make_ledger(tmp_path / "data.ledger")
    out, words = tmp_path / "out", tmp_path / "words"
    command = [*TRAIN, *more, "--out", out, "--data-ledger", ledger.path]

    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    after_training(monkeypatch, full)
    assert in_child(command, words=words) == 2
    error = words.read_text()
    assert error.startswith("adamas: error: ")
    assert error.count("\n") == 1
    assert "File too large" in error
    assert message in error
    assert list(refuge.glob("adamas-*")) == []
    assert list(tmp_path.rglob(".adamas*")) == []
    (spending,) = ledger.spendings()
    assert spending.finished
    monkeypatch.undo()
    if more:
        assert in_child(command) == 0
        assert result_of(out) == result_of(whole / "out")
        assert ledger.spendings() == [spending]


def test_without_seed_and_checkpoint_the_message_says_that_the_model_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: (_ for _ in ()).throw(OSError("no place")))
    after_training(monkeypatch, lambda: (tmp_path / "ledger.json").mkdir())
    with pytest.raises(RuntimeError, match=r"no place\. The model is lost\. With --checkpoint-every"):
        experiment.train_and_save(quick(seed=None), tmp_path)


def test_the_result_is_kept_if_the_last_checkpoint_fails(tmp_path, monkeypatch, capsys, whole):
    ledger = make_ledger(tmp_path / "data.ledger")
    original = Checkpoints.save

    def save(self, state):
        if state["spending"]["steps_done"] == STEPS:
            raise OSError("no room for the checkpoint")
        original(self, state)

    monkeypatch.setattr(Checkpoints, "save", save)
    out = tmp_path / "out"
    code, _, error = call(capsys, *TRAIN, *SAVED, "--out", out, "--data-ledger", ledger.path)
    assert code == 2
    assert "no room for the checkpoint. Its files, model.safetensors, ledger.json, result.json, are" in error
    assert result_of(out) == result_of(whole / "out")
    (spending,) = ledger.spendings()
    assert spending.finished


def test_an_earlier_checkpoint_that_fails_stops_the_run(tmp_path, monkeypatch):
    original = Checkpoints.save

    def save(self, state):
        if state["spending"]["steps_done"] == 4:
            raise OSError("no room for the checkpoint")
        original(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save)
        with pytest.raises(OSError, match="no room"):
            experiment.train_and_save(quick(), tmp_path, checkpoint_every=4)
    assert not (tmp_path / "model.safetensors").exists()
    result = experiment.train_and_save(quick(), tmp_path, checkpoint_every=4, resume=True)
    assert result["steps"] == STEPS


def test_a_model_that_cannot_be_evaluated_is_kept(tmp_path, monkeypatch, capsys, whole):
    def fails():
        raise RuntimeError("not enough memory")

    after_training(monkeypatch, fails)
    code, _, error = call(capsys, *TRAIN, *SAVED, "--out", tmp_path)
    assert code == 2
    assert "not enough memory. Its files, model.safetensors, ledger.json, are in" in error
    for file in ("ledger.json", "model.safetensors"):
        assert (tmp_path / file).read_bytes() == (whole / "out" / file).read_bytes()
    assert not (tmp_path / "result.json").exists()
    monkeypatch.undo()
    assert call(capsys, *TRAIN, *SAVED, "--out", tmp_path)[0] == 0
    assert result_of(tmp_path) == result_of(whole / "out")


@pytest.mark.parametrize("recovers", [True, False])
def test_diagnostics_that_cannot_be_written_do_not_stop_the_run(
    recovers, tmp_path, refuge, monkeypatch, capsys, whole
):
    file = tmp_path / "out" / "diagnostics.jsonl"
    original = experiment.PrivateRun.diagnostics

    def diagnostics(run, **options):
        if run.steps_done == 4:
            file.unlink()
            file.mkdir()
        if run.steps_done == 6 and recovers:
            file.rmdir()
        return original(run, **options)

    monkeypatch.setattr(experiment.PrivateRun, "diagnostics", diagnostics)
    code, _, error = call(capsys, *TRAIN, *DIAGNOSED, "--out", tmp_path / "out")
    expected = (whole / "out" / "diagnostics.jsonl").read_bytes()
    if recovers:
        assert code == 0
        assert file.read_bytes() == expected
    else:
        assert code == 2
        (place,) = refuge.glob("adamas-*")
        assert str(place) in error
        assert (place / "diagnostics.jsonl").read_bytes() == expected
        assert load_file(place / "model.safetensors")


def test_a_sweep_summary_that_cannot_be_written_is_kept_elsewhere(tmp_path, refuge, monkeypatch):
    out = tmp_path / "out"
    settings = quick(data="digits/validation", epsilon=2.0, noise_multiplier=None, steps=2)
    with pytest.raises(RuntimeError, match=r"sweep\.json, are in"):
        sweep.sweep(
            settings,
            {"lr": [0.1]},
            out,
            progress=lambda done, total: (out / "sweep.json").mkdir() if done == total else None,
        )
    (place,) = refuge.glob("adamas-*")
    (out / "sweep.json").rmdir()
    monkeypatch.setattr(sweep, "train_and_save", lambda *_, **__: pytest.fail("a run was made again"))
    result = sweep.sweep(settings, {"lr": [0.1]}, out)
    assert json.loads((place / "sweep.json").read_text()) == json.loads(json.dumps(result))


@pytest.mark.slow
def test_a_failed_run_of_a_sweep_for_the_best_is_not_kept_elsewhere(tmp_path, refuge, monkeypatch):
    def fails(path, tensors):
        raise OSError("no room")

    monkeypatch.setattr(experiment, "write_tensors", fails)
    settings = quick(data="digits/validation", epsilon=2.0, noise_multiplier=None, steps=2)
    with pytest.raises(RuntimeError, match="no room"):
        sweep.sweep(settings, {"lr": [0.1]}, tmp_path / "out", selection="best")
    assert list(refuge.glob("adamas-*")) == []
    assert not (tmp_path / "out").exists()
