"""Records the key of every draw of noise.

If two sums had the same noise, their difference would have none. The fixture `keys` records each key with the
sums that it served. `shared` returns the keys that served two.
"""

import pytest

from adamas.accounting.data_ledger import DataLedger
from adamas.noise import GaussianNoise


@pytest.fixture
def keys(monkeypatch):
    """Records each use of a key: the standard deviation of the noise, and the sum that it was added to."""
    used = {}
    original = GaussianNoise.add_normal_

    def seen(self, out, std=1.0, key=(), **options):
        name = (self.seed.words("noise", self.draws, *key, count=8).tobytes(), out.numel())
        used.setdefault(name, []).append((std, out.double().numpy().tobytes()))
        return original(self, out, std, key, **options)

    monkeypatch.setattr(GaussianNoise, "add_normal_", seen)
    return used


def shared(used):
    """Returns the uses of each key that served different sums, or one sum with two standard deviations."""
    return [uses for uses in used.values() if len(set(uses)) > 1]


@pytest.fixture
def ledger(tmp_path):
    """Makes a data set's ledger with a budget that small runs do not exhaust."""
    return DataLedger.create(tmp_path / "data.ledger", epsilon=50.0, delta=1e-3, accountant="rdp")


def known(ledger):
    """Returns how many releases a data set's ledger has recorded."""
    return sum(count for one in ledger.spendings() for _, count in one.entries)
