"""Fixtures of the tests that fetch packages."""

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
