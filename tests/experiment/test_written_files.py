"""Files appear only when complete: synced before they are renamed, and without leftovers."""

import os
from pathlib import Path

import pytest

from adamas._storage.files import own_folder, replace_text
from adamas.data import cache
from adamas.experiment import training as experiment
from adamas.reproduce import commands
from tests.support.small_trainings import FORK, die, named, quick


@pytest.mark.parametrize("writer", ["training", "cache", "page"])
def test_files_are_synced_before_they_are_renamed(writer, tmp_path, monkeypatch):
    synced, names = [], []
    fsync, replace = os.fsync, os.replace

    def record_fsync(handle):
        synced.append(os.fstat(handle).st_ino)
        fsync(handle)

    def record_replace(source, target):
        assert os.stat(source).st_ino in synced, f"{target} is renamed before it is synced"
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


def test_leftovers_of_a_dead_process_are_removed(tmp_path):
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
