"""Fetching through npm, pip and apt-get: stand-ins for the programs, and all that can go wrong."""

import errno
import hashlib
import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from adamas._storage.files import replace_file, replace_text
from adamas.data import cache, client
from adamas.data.apt import apt_files
from adamas.data.npm import _extract, npm_files
from adamas.data.pip import pip_files

PATH = "package/data/values"
CONTENT = b"some bytes"
DIGESTS = {PATH: hashlib.sha256(CONTENT).hexdigest()}
CLIENTS = {"npm": npm_files, "pip": pip_files, "apt-get": apt_files}
SUFFIX = {"npm": "tgz", "pip": "whl", "apt-get": "deb"}


class Registry:
    """Programs that serve one archive which the test writes, and an empty cache."""

    def __init__(self, root, client):
        self.client = client
        self.root = root
        self.cache = root / "cache"
        self.served = root / "served"
        self.calls = root / "calls"
        self.programs = root / "bin"
        self.programs.mkdir()
        self.program("npm", "npm")
        self.program("python", "pip")
        self.program("apt-get", "apt-get")
        # `dpkg-deb -x ARCHIVE FOLDER`; the archives of these tests are zip files.
        self.script("dpkg-deb", f'exec "{sys.executable}" -m zipfile -e "$2" "$3"\n')

    def program(self, name, client):
        self.script(
            name,
            f'echo "$@" >> "{self.calls}"\n'
            f'[ -f "{self.root}/hang" ] && {{ touch "{self.root}/hanging"; touch partial; exec sleep 60; }}\n'
            f'[ -f "{self.served}" ] || {{ cat "{self.root}/says" >&2; exit 1; }}\n'
            f'[ "$1" = update ] || cp "{self.served}" "./thing-1.0.0.{SUFFIX[client]}"\n',
        )

    def script(self, name, text):
        file = self.programs / name
        file.write_text(f"#!/bin/sh\n{text}")
        file.chmod(file.stat().st_mode | stat.S_IEXEC)

    def serve(self, content=CONTENT, name=PATH):
        if self.client == "npm":
            with tarfile.open(self.served, "w:gz") as archive:
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        else:
            with zipfile.ZipFile(self.served, "w") as archive:
                archive.writestr(name, content)

    def fail(self, message):
        self.served.unlink(missing_ok=True)
        (self.root / "says").write_text(message)

    def fetch(self):
        return CLIENTS[self.client]("thing", "1.0.0", DIGESTS)

    def count(self):
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0

    def left(self):
        return sorted(path.name for path in self.cache.iterdir()) if self.cache.exists() else []

    def process(self):
        """The fetch through npm in a process of its own."""
        code = (
            "import json, sys\n"
            "from adamas.data.npm import _extract, npm_files\n"
            "print(npm_files('thing', '1.0.0', json.loads(sys.argv[1])))"
        )
        return subprocess.Popen(
            [REAL_PYTHON, "-c", code, json.dumps(DIGESTS)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that a test can end it with its children
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )


REAL_PYTHON = sys.executable


def registry_for(client, tmp_path, monkeypatch):
    registry = Registry(tmp_path, client)
    monkeypatch.setenv("PATH", f"{registry.programs}:/usr/bin:/bin")
    monkeypatch.setenv("ADAMAS_HOME", str(registry.cache))
    monkeypatch.setattr(sys, "executable", str(registry.programs / "python"))
    return registry


@pytest.fixture(params=CLIENTS)
def registry(request, tmp_path, monkeypatch):
    return registry_for(request.param, tmp_path, monkeypatch)


@pytest.fixture
def npm(tmp_path, monkeypatch):
    return registry_for("npm", tmp_path, monkeypatch)


def test_a_package_is_fetched_once(registry):
    registry.serve()
    folder = registry.fetch()
    assert (folder / "values").read_bytes() == CONTENT
    assert registry.fetch() == folder
    assert registry.count() == 1
    assert registry.left() == ["thing-1.0.0"]


def test_the_exact_version_is_asked_for_and_no_code_of_the_package_runs(registry):
    registry.serve()
    registry.fetch()
    asked = registry.calls.read_text()
    wanted = {
        "npm": ["thing@1.0.0", "--ignore-scripts"],
        "pip": ["thing==1.0.0", "--only-binary=:all:", "--no-deps"],
        "apt-get": ["download", "thing=1.0.0"],
    }
    assert all(word in asked for word in wanted[registry.client])


def test_a_wrong_package_leaves_nothing_behind(registry):
    registry.serve(b"other bytes")
    with pytest.raises(RuntimeError, match=r"values is damaged.*Try again"):
        registry.fetch()
    registry.serve(name="package/other")
    with pytest.raises(RuntimeError, match="no file package/data/values"):
        registry.fetch()
    assert registry.left() == []
    registry.serve()
    registry.fetch()


def test_an_archive_that_is_cut_short_leaves_nothing_behind(registry):
    registry.serve()
    registry.served.write_bytes(registry.served.read_bytes()[:-30])
    with pytest.raises(RuntimeError, match=r"thing 1\.0\.0"):
        registry.fetch()
    registry.served.write_bytes(b"")
    with pytest.raises(RuntimeError, match=r"thing 1\.0\.0"):
        registry.fetch()
    assert registry.left() == []


def test_a_damaged_cache_says_how_to_mend_it(registry):
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


def test_no_package_says_what_the_program_said(registry):
    registry.fail("something\nERROR: no such package\nmore\n")
    with pytest.raises(RuntimeError, match=r"could not fetch thing 1\.0\.0: ERROR: no such package"):
        registry.fetch()
    assert registry.left() == []


def test_no_program_says_how_to_get_it(registry, monkeypatch):
    monkeypatch.setenv("PATH", str(registry.root / "nowhere"))
    monkeypatch.setattr(sys, "executable", str(registry.root / "nowhere" / "python"))
    remedy = {"npm": r"install Node\.js", "pip": "ensurepip", "apt-get": "ADAMAS_DATA"}[registry.client]
    with pytest.raises(
        RuntimeError, match=rf"{registry.client} is needed to fetch thing 1\.0\.0: .*{remedy}"
    ):
        registry.fetch()


def test_an_interpreter_without_pip_says_how_to_get_it(tmp_path, monkeypatch):
    registry = registry_for("pip", tmp_path, monkeypatch)
    registry.fail("/venv/bin/python: No module named pip\n")
    with pytest.raises(RuntimeError, match=r"pip is needed to fetch thing 1\.0\.0: .*ensurepip"):
        registry.fetch()


def test_a_program_that_may_not_be_run_is_not_blamed_on_the_cache(tmp_path, monkeypatch):
    registry = registry_for("npm", tmp_path, monkeypatch)

    def refused(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(client.subprocess, "run", refused)
    with pytest.raises(RuntimeError, match=r"npm is needed to fetch thing 1\.0\.0"):
        registry.fetch()


def test_apt_gets_a_list_of_packages_of_its_own(tmp_path, monkeypatch):
    registry = registry_for("apt-get", tmp_path, monkeypatch)
    registry.serve()
    # Like a new machine: it knows the package once the list that is named in the options is there.
    registry.script(
        "apt-get",
        f'echo "$@" >> "{registry.calls}"\n'
        'for option in "$@"; do case "$option" in Dir::State::Lists=*) lists="${option#*=}";; esac; done\n'
        '[ "$1" = update ] && { touch "$lists/partial/index"; exit $?; }\n'
        '[ -f "$lists/partial/index" ] || { echo "E: Unable to locate package thing" >&2; exit 100; }\n'
        f'cp "{registry.served}" ./thing.deb\n',
    )
    registry.fetch()
    assert [line.split()[0] for line in registry.calls.read_text().splitlines()] == [
        *("download", "update", "download"),
    ]


def test_apt_without_a_list_of_packages_says_what_to_run(tmp_path, monkeypatch):
    registry = registry_for("apt-get", tmp_path, monkeypatch)
    registry.fail("E: Unable to locate package thing\n")
    with pytest.raises(RuntimeError, match=r"E: Unable to locate package thing.*apt-get update"):
        registry.fetch()


@pytest.mark.subprocess
def test_two_processes_at_once_fetch_once(npm):
    npm.serve()
    processes = [npm.process() for _ in range(2)]
    answers = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert answers == {str(npm.cache / "thing-1.0.0")}
    assert npm.count() == 1
    assert npm.left() == ["thing-1.0.0"]


def test_two_processes_without_locks_are_safe_too(npm, monkeypatch):
    npm.serve()
    monkeypatch.setattr(cache, "fcntl", None)
    fetch_into = cache._fetch_into

    def second_is_faster(folder, name, sha256, fetch):
        fetch_into(folder, name, sha256, fetch)  # another process
        fetch_into(folder, name, sha256, fetch)

    monkeypatch.setattr(cache, "_fetch_into", second_is_faster)
    assert (npm.fetch() / "values").read_bytes() == CONTENT
    assert npm.left() == ["thing-1.0.0"]


@pytest.mark.kills
def test_a_killed_fetch_leaves_no_package_and_the_next_one_sweeps_up(npm):
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


def test_a_full_disk_is_a_clear_error_and_leaves_the_cache_as_it_was(npm, monkeypatch):
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


def test_a_program_that_finds_the_disk_full_is_the_same_error(registry):
    registry.fail("npm error code ENOSPC\nOSError: [Errno 28] No space left on device\n")
    with pytest.raises(RuntimeError, match=r"cache folder .*No space left on device.*ADAMAS_HOME"):
        registry.fetch()
    assert registry.left() == []


def test_a_cache_that_cannot_be_made_is_a_clear_error(npm, monkeypatch):
    (npm.root / "file").touch()
    monkeypatch.setenv("ADAMAS_HOME", str(npm.root / "file" / "cache"))
    with pytest.raises(RuntimeError, match=r"cannot be written.*ADAMAS_HOME"):
        npm.fetch()


def test_a_program_that_takes_too_long_is_stopped(npm, monkeypatch):
    npm.serve()
    (npm.root / "hang").touch()
    monkeypatch.setattr("adamas.data.client._MINUTES", 0.2 / 60)
    with pytest.raises(RuntimeError, match=r"npm did not fetch thing 1\.0\.0 within"):
        npm.fetch()
    assert npm.left() == []


def test_an_archive_cannot_write_outside_of_its_folder(npm):
    evil = "../../evil"
    npm.serve(name=evil)
    with pytest.raises(RuntimeError, match="damaged"):
        npm_files("thing", "1.0.0", {evil: DIGESTS[PATH]})
    assert not list(npm.root.rglob("evil"))


def test_an_archive_with_a_link_in_the_place_of_a_file_is_refused(tmp_path):
    with tarfile.open(tmp_path / "thing.tgz", "w:gz") as archive:
        link = tarfile.TarInfo("package/file")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with (
        tarfile.open(tmp_path / "thing.tgz") as archive,
        pytest.raises(tarfile.TarError, match="no file within the archive"),
    ):
        _extract(archive, archive.getmember("package/file"), tmp_path / "files")
    assert not (tmp_path / "files").exists()


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    replace_text(tmp_path / "file", "first")

    def dies(path):
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_file(tmp_path / "file", dies)
    assert (tmp_path / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("ADAMAS_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / "adamas"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_folder() == Path.home() / ".cache" / "adamas"
    monkeypatch.setenv("ADAMAS_HOME", str(tmp_path / "mine"))
    assert cache.cache_folder() == tmp_path / "mine"
