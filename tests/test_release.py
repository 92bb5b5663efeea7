"""`scripts/release --dry-run` builds a copy of this tree without the network, and refuses an unready one."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import adamas

ROOT = Path(__file__).parent.parent
NEEDS_GIT = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="needs git and a clone"
)
NEEDS_HATCHLING = pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None, reason="needs hatchling: pip install '.[release]'"
)


def git(folder, *arguments):
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def clone(tmp_path):
    """Makes a repository with the present files of this one, committed."""
    listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(None, listed):
        if (ROOT / name).exists():  # a deletion may not be committed yet
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "a copy")
    return tmp_path


def release(clone, *arguments):
    environment = os.environ | {"PYTHON": sys.executable, "PIP_NO_INDEX": "1"}
    command = ["bash", "scripts/release", *arguments]
    return subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True)


@pytest.mark.slow
@NEEDS_GIT
@NEEDS_HATCHLING
def test_a_dry_run_builds_and_checks_without_a_tag(clone):
    done = release(clone, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "not tagged" in done.stdout
    assert git(clone, "tag") == ""
    assert git(clone, "status", "--porcelain") == ""  # dist/ is ignored
    names = sorted(file.name for file in (clone / "dist").iterdir())
    assert names == [
        f"adamas-{adamas.__version__}-py3-none-any.whl",
        f"adamas-{adamas.__version__}.tar.gz",
    ]


@pytest.mark.slow
@NEEDS_GIT
def test_uncommitted_changes_wrong_versions_and_existing_tags_are_refused(clone):
    (clone / "new.txt").write_text("new")
    done = release(clone, "--dry-run")
    assert (done.returncode, done.stdout) == (2, "")
    assert "uncommitted changes" in done.stderr

    (clone / "CHANGELOG.md").write_text("# Changelog\n\n## 9.9.9\n")
    assert "CHANGELOG.md begins with 9.9.9" in release(clone, "--dry-run").stderr
    assert "unknown option --wet" in release(clone, "--wet").stderr

    git(clone, "checkout", "--quiet", "CHANGELOG.md")
    (clone / "new.txt").unlink()
    git(clone, "tag", f"v{adamas.__version__}")
    assert "the tag v" in release(clone, "--dry-run").stderr


def test_changelog_and_citation_have_the_version_of_the_package():
    changes = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert changes is not None
    assert changes[1] == adamas.__version__
    assert f'version: "{adamas.__version__}"' in (ROOT / "CITATION.cff").read_text()


def test_the_hooks_run_the_checks_of_the_test_script():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    checks = re.findall(
        r"^\.venv/bin/(ruff .*?|mypy)(?: \.)?$", (ROOT / "scripts/test").read_text(), flags=re.MULTILINE
    )
    assert checks == ["ruff check", "ruff format --check", "mypy"]
    for check in checks:
        assert f"entry: .venv/bin/{check}\n" in hooks


def test_the_citation_has_the_fields_of_its_format():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert all(citation[key] for key in ("message", "title", "authors"))
    assert citation["authors"] == [{"name": "The adamas developers"}]
    assert yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["repo"] == "local"
