"""The fast tests are collected without the extras, and reach every package."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEED_EXTRAS = {"tabular"}  # all of it works on pandas
pytestmark = pytest.mark.subprocess


@pytest.fixture(scope="module")
def collected():
    """Counts, for each file, the fast tests that pytest finds where no extra is installed."""
    hiding = ["-p", "tests.support.hidden_packages", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *hiding, "--collect-only", "-qq", "-m", "not slow"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    rows = [line.rsplit(": ", 1) for line in done.stdout.splitlines() if ".py: " in line]
    return {file: int(count) for file, count in rows}


def test_every_package_has_fast_tests(collected):
    folders = {file.split("/")[1] for file in collected if file.startswith("tests/")}
    missing = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")} - folders - NEED_EXTRAS
    assert not missing, f"no fast test in {sorted(missing)}"


def test_most_tests_and_doctests_are_fast(collected):
    assert sum(collected.values()) > 5000
    assert any(file.startswith("adamas/") for file in collected)
    for prefix in ("tests/engines/test_promise", "tests/engines/test_attacks"):
        assert sum(count for file, count in collected.items() if file.startswith(prefix)) > 50, prefix
