"""One process at a time writes to a folder; the death of a process frees it."""

import contextlib
import signal

import pytest

from adamas._storage import files as _files
from adamas._storage.files import own_folder, replace_text
from adamas.cli import main
from adamas.experiment import training as experiment
from tests.support.command_line import call
from tests.support.small_trainings import FORK, SAVED, TRAIN, make_ledger, named


@contextlib.contextmanager
def waiting(arguments):
    """Runs a command in another process, which waits after its first step."""
    reached = FORK.Event()
    original = experiment.PrivateRun.privatize

    def run():
        def privatize(*a, **o):
            result = original(*a, **o)
            reached.set()
            signal.pause()
            return result

        experiment.PrivateRun.privatize = privatize
        main(list(map(str, arguments)))

    process = FORK.Process(target=run)
    process.start()
    try:
        assert reached.wait(60)
        yield process
    finally:
        process.kill()
        process.join()


@pytest.mark.kills
def test_two_trainings_do_not_share_a_folder_and_the_death_of_one_frees_it(tmp_path, whole, capsys):
    out, ledger = tmp_path / "out", make_ledger(tmp_path / "data.ledger")
    command = [*TRAIN, *SAVED, "--out", out, "--data-ledger", ledger.path]
    with waiting(command):
        before = named(out)
        for other in (command, [*TRAIN, "--out", out], [*TRAIN, *SAVED, "--seed", "6", "--out", out]):
            code, printed, error = call(capsys, *other)
            assert code == 2
            assert printed == ""
            assert f"Another training is writing to {out}" in error
        assert named(out) == before
        assert len(ledger.spendings()) == 1
    assert call(capsys, *command)[0] == 0
    assert (out / "model.safetensors").read_bytes() == (whole / "out" / "model.safetensors").read_bytes()


@pytest.mark.subprocess
@pytest.mark.parametrize("selection", ["all", "best"])
def test_two_sweeps_do_not_share_a_folder(selection, tmp_path, capsys):
    command = [
        "sweep", "--try", "lr=0.01,0.1", "--epsilon", "2", "--steps", "2", "--model", "linear",
        "--accountant", "rdp", "--selection", selection, "--out", tmp_path,
    ]  # fmt: skip
    with waiting(command):
        code, _, error = call(capsys, *command)
        assert code == 2
        assert f"Another training is writing to {tmp_path}" in error
        if selection == "all":
            code, _, error = call(capsys, *TRAIN, "--out", tmp_path / "run-1")
            assert code == 2
            assert "Another training" in error
    assert call(capsys, *command)[0] == 0  # also removes what the dead process left, which must stay secret
    assert set(named(tmp_path)) == {".lock", "sweep.json"} | (
        {"best"} if selection == "best" else {"run-1", "run-2"}
    )


def test_only_a_folder_that_stayed_empty_is_removed(tmp_path):
    with own_folder(tmp_path / "a" / "b", ["file"]):
        assert named(tmp_path / "a" / "b") == [_files._LOCK]
    assert named(tmp_path) == []
    with own_folder(tmp_path / "a" / "b"):
        replace_text(tmp_path / "a" / "b" / "file", "text")
    assert named(tmp_path / "a" / "b") == [_files._LOCK, "file"]
