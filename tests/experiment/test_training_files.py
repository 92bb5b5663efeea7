"""The folder of a training: of one process at a time, tried before anything is spent, without half a result.

Processes are real, and so are their deaths: a child kills itself as `kill -9` does.
"""

import contextlib
import json
import multiprocessing
import os
import resource
import signal
import stat
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from adamas import DataLedger
from adamas._storage import files as _files
from adamas._storage.files import own_folder, replace_text
from adamas.accounting.data_ledger import DataLedger as Ledger
from adamas.cli import main
from adamas.data import cache
from adamas.experiment import sweep
from adamas.experiment import training as experiment
from adamas.reproduce import commands
from adamas.run.checkpoint import Checkpoints
from tests.support.command_line import call

STEPS = 9
TRAIN = [
    "train", "--model", "linear", "--rule", "adam", "--batch-size", "100", "--noise-multiplier", "1",
    "--steps", str(STEPS), "--accountant", "rdp", "--seed", "5",
]  # fmt: skip
SAVED = ["--checkpoint-every", "4", "--resume"]
DIAGNOSED = ["--diagnose-every", "2"]
RESULTS = ["ledger.json", "model.safetensors", "result.json"]

FORK = multiprocessing.get_context("fork")


def in_child(arguments, prepare=lambda: None, words=None):
    """The exit code of a command in a process of its own; negative if a signal ended it."""

    def run():
        with Path(words or os.devnull).open("w") as file, contextlib.redirect_stderr(file):
            torch.set_num_threads(1)  # as in other tests: the last bits depend on it
            prepare()
            main(list(map(str, arguments)))

    process = FORK.Process(target=run)
    process.start()
    process.join(120)
    assert process.exitcode is not None
    return process.exitcode


def named(folder):
    return sorted(path.name for path in folder.iterdir())


def result_of(folder):
    return json.loads((folder / "result.json").read_text()) | {"seconds": 0}


def make_ledger(path):
    return DataLedger.create(path, epsilon=9.0, delta=1e-5, accountant="rdp")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody disturbed, with diagnostics, and the ledger of its data."""
    folder = tmp_path_factory.mktemp("whole")
    ledger = make_ledger(folder / "data.ledger")
    assert in_child([*TRAIN, *DIAGNOSED, "--out", folder / "out", "--data-ledger", ledger.path]) == 0
    return folder


# --- killed, and resumed --------------------------------------------------------------------------------


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def dying_at(module, function, *, when, before=False):
    """Replaces a function by one that ends the process, before or after the call for which `when` holds."""
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
    """Holds for one of the calls for which a test holds."""
    count = 0

    def when(*arguments):
        nonlocal count
        count += bool(test(*arguments))
        return test(*arguments) and count == number

    return when


def renamed(name, number=1, *, before=False):
    """The death at the renaming of a file that is complete."""
    return dying_at(os, "replace", when=nth(number, lambda _, to: Path(to).name == name), before=before)


def removed(name):
    """The death after a file is removed."""
    return dying_at(os, "unlink", when=lambda path, *_: Path(path).name == name)


CHECKPOINT = experiment.CHECKPOINT
DEATHS = {
    "before anything": lambda: renamed("settings.json", before=True),
    "before the diagnostics are begun": lambda: renamed("settings.json"),
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
def test_whenever_a_command_is_killed_resume_ends_in_the_same_files_and_spends_once(
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
    spendings = ledger.spendings()  # of each process that released something
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


# --- finished, and resumed ------------------------------------------------------------------------------


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


def test_half_a_result_without_a_checkpoint_is_not_overwritten(tmp_path, capsys):
    assert in_child([*TRAIN, "--out", tmp_path], renamed("model.safetensors")) == -signal.SIGKILL
    for more in ([], SAVED):
        code, _, error = call(capsys, *TRAIN, *more, "--out", tmp_path)
        assert code == 2
        assert "model.safetensors" in error


# --- one process at a time ------------------------------------------------------------------------------


@contextlib.contextmanager
def waiting(arguments):
    """A command that waits after its first step, in a process of its own."""
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
    assert call(capsys, *command)[0] == 0  # which also removes what the dead one left, and nobody may see
    assert set(named(tmp_path)) == {".lock", "sweep.json"} | (
        {"best"} if selection == "best" else {"run-1", "run-2"}
    )


# --- folders that cannot be written ---------------------------------------------------------------------


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
def test_a_folder_that_cannot_be_made_is_refused(kind, tmp_path, capsys):
    (tmp_path / "file").touch()
    out = tmp_path / "file" if kind == "file" else tmp_path / "file" / "out"
    code, _, error = call(capsys, *TRAIN, "--out", out)
    assert code == 2
    assert "Expected --out to be a writable folder" in error


@contextlib.contextmanager
def read_only_folder():
    """A folder in which this process may not write; a superuser is somebody else meanwhile."""
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
    """As a limit on the size of files, which the system enforces."""
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


def test_a_sweep_is_refused_where_a_run_has_no_place(tmp_path):
    (tmp_path / "run-2").touch()
    settings = quick(data="digits/validation", epsilon=2.0, noise_multiplier=None)
    with pytest.raises(ValueError, match="without run-2"):
        sweep.sweep(settings, {"lr": [0.01, 0.1]}, tmp_path)
    assert named(tmp_path) == [".lock", "run-2"]


# --- failures after the last step -----------------------------------------------------------------------


def quick(**changes):
    options = {"data": "digits", "model": "linear", "rule": "adam", "batch_size": 100, "delta": 1e-5}
    options |= {"noise_multiplier": 1.0, "steps": STEPS, "accountant": "rdp", "seed": 5}
    return experiment.Settings(**options | changes)


@pytest.fixture
def refuge(tmp_path, monkeypatch):
    """The system's temporary directory."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def after_training(monkeypatch, action):
    """Does something between the last step and the files."""
    original = experiment.accuracy

    def accuracy(*arguments):
        action()
        return original(*arguments)

    monkeypatch.setattr(experiment, "accuracy", accuracy)


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], SAVED], ids=["plain", "with checkpoints"])
@pytest.mark.parametrize("name", RESULTS)
def test_what_the_folder_does_not_take_at_the_end_is_kept_elsewhere(
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
    if more:  # the folder can still be finished, and spends nothing more
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
def test_a_disk_that_is_full_everywhere_at_the_end(more, message, tmp_path, refuge, whole, monkeypatch):
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


def test_without_seed_and_checkpoint_the_loss_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: (_ for _ in ()).throw(OSError("no place")))
    after_training(monkeypatch, lambda: (tmp_path / "ledger.json").mkdir())
    with pytest.raises(RuntimeError, match=r"no place\. The model is lost\. With --checkpoint-every"):
        experiment.train_and_save(quick(seed=None), tmp_path)


def test_a_last_checkpoint_that_fails_does_not_cost_the_result(tmp_path, monkeypatch, capsys, whole):
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


def test_a_checkpoint_that_fails_before_the_last_step_stops_the_run(tmp_path, monkeypatch):
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


def test_a_sweep_whose_summary_cannot_be_written(tmp_path, refuge, monkeypatch):
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
def test_a_run_of_which_only_the_best_may_be_seen_is_not_kept_elsewhere(tmp_path, refuge, monkeypatch):
    def fails(path, tensors):
        raise OSError("no room")

    monkeypatch.setattr(experiment, "write_tensors", fails)
    settings = quick(data="digits/validation", epsilon=2.0, noise_multiplier=None, steps=2)
    with pytest.raises(RuntimeError, match="no room"):
        sweep.sweep(settings, {"lr": [0.1]}, tmp_path / "out", selection="best")
    assert list(refuge.glob("adamas-*")) == []
    assert not (tmp_path / "out").exists()


# --- the writer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", ["training", "cache", "page"])
def test_files_are_on_disk_before_they_have_their_names(writer, tmp_path, monkeypatch):
    """Each renaming follows the sync of the file that is renamed."""
    synced, names = [], []
    fsync, replace = os.fsync, os.replace

    def record_fsync(handle):
        synced.append(os.fstat(handle).st_ino)
        fsync(handle)

    def record_replace(source, target):
        assert os.stat(source).st_ino in synced, f"{target} was not synced"
        names.append(Path(target).name)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    if writer == "training":
        experiment.train_and_save(quick(), tmp_path)
        assert names == ["model.safetensors", "ledger.json", "result.json"]
    elif writer == "cache":
        cache.write_whole(tmp_path / "file", lambda path: path.write_text("x") and None)
        assert names == ["file"]
    else:
        monkeypatch.setattr(commands.privacy, "published_numbers", lambda _: [])
        monkeypatch.setattr(commands.privacy, "page", lambda _: "page")
        monkeypatch.setattr(commands.privacy, "grid", lambda _: [])
        commands._privacy_table(tmp_path / "numbers.toml", tmp_path)
        assert names == ["README.md"]


def test_what_a_process_left_that_died_is_removed(tmp_path):
    def dies():
        os.replace = lambda *_: die()
        replace_text(tmp_path / "file", "half")

    process = FORK.Process(target=dies)
    process.start()
    process.join()
    assert len(named(tmp_path)) == 1
    with own_folder(tmp_path):
        assert named(tmp_path) == [".lock"]
    process = FORK.Process(target=dies)
    process.start()
    process.join()
    cache.write_whole(tmp_path / "other", lambda path: path.write_text("x") and None)
    assert named(tmp_path) == [".lock", "other"]


def test_a_folder_that_stayed_empty_is_removed_and_others_are_not(tmp_path):
    with own_folder(tmp_path / "a" / "b", ["file"]):
        assert named(tmp_path / "a" / "b") == [_files._LOCK]
    assert named(tmp_path) == []
    with own_folder(tmp_path / "a" / "b"):
        replace_text(tmp_path / "a" / "b" / "file", "text")
    assert named(tmp_path / "a" / "b") == [_files._LOCK, "file"]
