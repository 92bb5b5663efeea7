"""Fixtures that several tests of tables share."""

import pytest

from adamas.reproduce import load_table, runner
from tests.support.small_tables import Pool, write


@pytest.fixture
def real_processes():
    """Lets a test start real processes."""


@pytest.fixture(autouse=True)
def processes(request, monkeypatch):
    """Makes runs in this process, unless a test uses `real_processes`."""
    if "real_processes" not in request.fixturenames:
        monkeypatch.setattr(runner, "ProcessPoolExecutor", Pool)


@pytest.fixture
def table(tmp_path):
    return load_table(write(tmp_path))
