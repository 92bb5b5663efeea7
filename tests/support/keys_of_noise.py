"""Shared by tests: helpers of `keys_of_noise`."""

import pytest

from adamas.accounting.data_ledger import DataLedger
from adamas.noise import GaussianNoise


@pytest.fixture
def keys(monkeypatch):
    """Every key of the noise that runs use, with what it was used for."""
    used = {}
    original = GaussianNoise.add_normal_

    def seen(self, out, std=1.0, key=(), **options):
        name = (self.seed.words("noise", self.draws, *key, count=8).tobytes(), out.numel())
        used.setdefault(name, []).append((std, out.double().numpy().tobytes()))
        return original(self, out, std, key, **options)

    monkeypatch.setattr(GaussianNoise, "add_normal_", seen)
    return used


def shared(used):
    """The keys that served different sums, or one sum with two deviations."""
    return [uses for uses in used.values() if len(set(uses)) > 1]


@pytest.fixture
def ledger(tmp_path):
    return DataLedger.create(tmp_path / "data.ledger", epsilon=50.0, delta=1e-3, accountant="rdp")


def known(ledger):
    """How many releases a ledger knows."""
    return sum(count for one in ledger.spendings() for _, count in one.entries)
