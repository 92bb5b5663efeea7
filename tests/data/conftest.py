"""A place without data sets."""

import pytest


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """No data of the user's, and no program that could fetch any."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ADAMAS_DATA", raising=False)
    monkeypatch.setenv("ADAMAS_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
