"""Fixtures that several tests of trainings share."""

import tempfile

import pytest

from tests.support.small_trainings import DIAGNOSED, TRAIN, in_child, make_ledger


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """Trains without interruption, with diagnostics and a data set's ledger, and returns the folder."""
    folder = tmp_path_factory.mktemp("whole")
    ledger = make_ledger(folder / "data.ledger")
    assert in_child([*TRAIN, *DIAGNOSED, "--out", folder / "out", "--data-ledger", ledger.path]) == 0
    return folder


@pytest.fixture
def refuge(tmp_path, monkeypatch):
    """Replaces the system's temporary directory, and returns the new one."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder
