"""Folders that cannot be written are refused before any budget is spent."""

import contextlib
import os
import resource
import tempfile
from pathlib import Path

import pytest

from adamas.experiment import sweep
from adamas.experiment import training as experiment
from tests.support.command_line import call
from tests.support.small_trainings import (
    CHECKPOINT,
    DIAGNOSED,
    FORK,
    RESULTS,
    SAVED,
    TRAIN,
    make_ledger,
    named,
    quick,
)


@pytest.mark.parametrize(
    "name", [*RESULTS, "diagnostics.jsonl", "settings.json", CHECKPOINT, f"{CHECKPOINT}.journal"]
)
def test_a_directory_in_the_place_of_a_file_is_refused_before_anything_is_spent(name, tmp_path, capsys):
    ledger = make_ledger(tmp_path / "data.ledger")
    out = tmp_path / "out"
    (out / name).mkdir(parents=True)
    command = [*TRAIN, *DIAGNOSED, *SAVED, "--out", out, "--data-ledger", ledger.path]
    code, _, error = call(capsys, *command)
    assert code == 2
    assert name in error
    assert "Is a directory" in error
    assert ledger.spendings() == []
    assert named(out) == sorted([".lock", name])


@pytest.mark.parametrize("kind", ["file", "below a file"])
def test_a_folder_that_cannot_be_created_is_refused(kind, tmp_path, capsys):
    (tmp_path / "file").touch()
    out = tmp_path / "file" if kind == "file" else tmp_path / "file" / "out"
    code, _, error = call(capsys, *TRAIN, "--out", out)
    assert code == 2
    assert "Expected --out to be a writable folder" in error


@contextlib.contextmanager
def read_only_folder():
    """Makes a folder that this process may not write to; a superuser becomes another user meanwhile."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o555)
        superuser = os.geteuid() == 0
        if superuser:
            os.seteuid(65534)
        try:
            yield Path(folder)
        finally:
            if superuser:
                os.seteuid(0)
            Path(folder).chmod(0o755)


@pytest.mark.parametrize("below", [".", "out"])
def test_a_read_only_folder_is_refused_before_anything_is_spent(below, capsys, monkeypatch):
    monkeypatch.setattr(experiment, "private_run", lambda *_, **__: pytest.fail("a run was made"))
    with read_only_folder() as folder:
        code, _, error = call(capsys, *TRAIN, "--out", folder / below)
    assert code == 2
    assert "Expected --out to be a writable folder" in error
    assert "Permission denied" in error


def test_a_full_disk_is_refused_before_anything_is_spent(tmp_path):
    """Imitates the full disk by the system's limit on the size of files."""
    ledger = make_ledger(tmp_path / "data.ledger")
    out = tmp_path / "out"
    out.mkdir()

    def write(folder):
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        with pytest.raises(RuntimeError, match=r"model\.safetensors cannot be written: File too large"):
            experiment.train_and_save(quick(), folder, data_ledger=ledger.path)

    process = FORK.Process(target=write, args=(out,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert ledger.spendings() == []
    assert named(out) == [".lock"]


def test_a_sweep_is_refused_if_a_file_has_the_name_of_a_run(tmp_path):
    (tmp_path / "run-2").touch()
    settings = quick(data="digits/validation", epsilon=2.0, noise_multiplier=None)
    with pytest.raises(ValueError, match="without run-2"):
        sweep.sweep(settings, {"lr": [0.01, 0.1]}, tmp_path)
    assert named(tmp_path) == [".lock", "run-2"]
