"""`adamas train --resume`: a command that died at any moment ends in the same files and spends once.

The processes are real, and die as `kill -9` ends them.
"""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from adamas import DataLedger
from adamas.accounting.data_ledger import DataLedger as Ledger
from adamas.experiment import training as experiment
from tests.support.command_line import call
from tests.support.small_trainings import (
    CHECKPOINT,
    DIAGNOSED,
    RESULTS,
    SAVED,
    STEPS,
    TRAIN,
    die,
    in_child,
    make_ledger,
    named,
    quick,
    result_of,
)


def dying_at(module, function, *, when, before=False):
    """Returns a patch of `function` that kills the process at the call for which `when` holds.

    The process dies before the call or, by default, after it.
    """
    original = getattr(module, function)

    def wrapped(*arguments, **options):
        found = when(*arguments)
        if found and before:
            die()
        result = original(*arguments, **options)
        if found:
            die()
        return result

    return lambda: setattr(module, function, wrapped)


def nth(number, test):
    """Returns a condition that holds at the call with this number among those for which `test` holds."""
    count = 0

    def when(*arguments):
        nonlocal count
        count += bool(test(*arguments))
        return test(*arguments) and count == number

    return when


def renamed(name, number=1, *, before=False):
    """Returns a patch that kills the process when a complete file is renamed to `name`."""
    return dying_at(os, "replace", when=nth(number, lambda _, to: Path(to).name == name), before=before)


def removed(name):
    """Returns a patch that kills the process after the file `name` is removed."""
    return dying_at(os, "unlink", when=lambda path, *_: Path(path).name == name)


DEATHS = {
    "before anything": lambda: renamed("settings.json", before=True),
    "before the diagnostics start": lambda: renamed("settings.json"),
    "before the first checkpoint": lambda: renamed("diagnostics.jsonl"),
    "within the first checkpoint": lambda: renamed(CHECKPOINT, before=True),
    "after the first checkpoint": lambda: renamed(CHECKPOINT),
    "after the reservation": lambda: dying_at(Ledger, "reserve", when=lambda *_: True),
    "between two checkpoints": lambda: dying_at(
        experiment.PrivateRun, "diagnostics", when=lambda run: run.steps_done == 6
    ),
    "within the second checkpoint": lambda: renamed(CHECKPOINT, 2, before=True),
    "within the last checkpoint": lambda: renamed(CHECKPOINT, 4, before=True),
    "before the spending is settled": lambda: renamed(CHECKPOINT, 4),
    "after the spending is settled": lambda: dying_at(Ledger, "settle", when=lambda *_: True),
    "within the model": lambda: renamed("model.safetensors", before=True),
    "between model and ledger": lambda: renamed("model.safetensors"),
    "between ledger and result": lambda: renamed("ledger.json"),
    "within the result": lambda: renamed("result.json", before=True),
    "after the result": lambda: renamed("result.json"),
    "after the checkpoint is removed": lambda: removed(CHECKPOINT),
    "after the settings are removed": lambda: removed("settings.json"),
}


@pytest.mark.kills
@pytest.mark.parametrize("death", DEATHS)
def test_a_command_killed_at_any_moment_resumes_to_the_same_files_and_spends_once(
    death, whole, tmp_path, capsys
):
    out, ledger = tmp_path / "out", make_ledger(tmp_path / "data.ledger")
    command = [*TRAIN, *DIAGNOSED, *SAVED, "--out", out, "--data-ledger", ledger.path]
    assert in_child(command, DEATHS[death]()) == -signal.SIGKILL
    assert in_child(command) == 0
    assert result_of(out) == result_of(whole / "out")
    for name in ("ledger.json", "model.safetensors", "diagnostics.jsonl"):
        assert (out / name).read_bytes() == (whole / "out" / name).read_bytes()
    assert named(out) == sorted([".lock", "diagnostics.jsonl", *RESULTS])
    spendings = ledger.spendings()  # one for each process that released something
    assert all(spending.finished for spending in spendings)
    assert sum(count for spending in spendings for _, count in spending.entries) == STEPS
    (expected,) = DataLedger(whole / "data.ledger").spendings()
    assert {event for spending in spendings for event, _ in spending.entries} == {
        event for event, _ in expected.entries
    }
    before = {path: path.read_bytes() for path in out.iterdir()}
    code, printed, _ = call(capsys, *command)
    assert code == 0
    assert "finished" in printed
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    assert ledger.spendings() == spendings


def test_resume_of_a_finished_run_shows_its_result(tmp_path, capsys):
    ledger = make_ledger(tmp_path / "data.ledger")
    command = [*TRAIN, *SAVED, "--out", tmp_path / "out", "--data-ledger", ledger.path]
    assert call(capsys, *command)[0] == 0
    spent = ledger.spendings()
    code, printed, _ = call(capsys, *command)
    assert code == 0
    assert "finished" in printed
    assert "epsilon" in printed
    code, printed, _ = call(capsys, *command, "--json")
    assert code == 0
    assert json.loads(printed) == json.loads((tmp_path / "out" / "result.json").read_text())
    code, _, error = call(capsys, *command, "--lr", "0.5")
    assert code == 2
    assert "rule_options was {}" in error
    code, _, error = call(capsys, *(word for word in command if word != "--resume"))
    assert code == 2
    assert "result.json" in error
    assert ledger.spendings() == spent


def test_an_incomplete_result_without_a_checkpoint_is_not_overwritten(tmp_path, capsys):
    assert in_child([*TRAIN, "--out", tmp_path], renamed("model.safetensors")) == -signal.SIGKILL
    for more in ([], SAVED):
        code, _, error = call(capsys, *TRAIN, *more, "--out", tmp_path)
        assert code == 2
        assert "model.safetensors" in error


def test_an_interrupted_training_continues_to_the_same_files(tmp_path, monkeypatch):
    settings, out = quick(schedule="cosine"), tmp_path / "out"
    options = {"diagnose": True, "diagnose_every": 2}
    whole = experiment.train_and_save(settings, tmp_path / "whole", **options)
    options |= {"checkpoint_every": 4}
    diagnostics = experiment.PrivateRun.diagnostics

    def interrupted(*arguments):
        raise KeyboardInterrupt

    def interrupted_at_six(run, **wanted):
        if run.steps_done == 6:
            raise KeyboardInterrupt
        return diagnostics(run, **wanted)

    with monkeypatch.context() as patch:
        patch.setattr(experiment.PrivateRun, "diagnostics", interrupted_at_six)
        with pytest.raises(KeyboardInterrupt):
            experiment.train_and_save(settings, out, **options)
    assert (out / CHECKPOINT).exists()
    with pytest.raises(ValueError, match="--resume"):
        experiment.train_and_save(settings, out, **options)
    options |= {"resume": True}
    with pytest.raises(ValueError, match=r"rule_options was \{\}, and is \{'lr': 0.5\} now"):
        experiment.train_and_save(replace(settings, rule_options={"lr": 0.5}), out, **options)
    with monkeypatch.context() as patch:
        patch.setattr(experiment, "accuracy", interrupted)  # between the last step and the result
        with pytest.raises(KeyboardInterrupt):
            experiment.train_and_save(settings, out, **options)
    result = experiment.train_and_save(settings, out, **options)
    assert {**result, "seconds": 0} == {**whole, "seconds": 0}
    files = ("model.safetensors", "ledger.json", "diagnostics.jsonl")
    for name in files:
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert named(out) == sorted([*files, ".lock", "result.json"])
    assert load_file(out / "model.safetensors")


def test_resume_needs_checkpoints_and_a_folder(tmp_path, capsys):
    with pytest.raises(ValueError, match="--checkpoint-every with --resume"):
        experiment.train_and_save(quick(), tmp_path / "x", resume=True)
    code, _, error = call(capsys, *TRAIN, "--resume", "--checkpoint-every", "3")
    assert code == 2
    assert "--out with --resume" in error
