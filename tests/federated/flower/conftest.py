"""Fixtures of the tests of Flower nodes."""

import pytest
import torch
from torch.utils.data import TensorDataset

from tests.support import federated_blobs


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch):
    """Forgets the task and the probes of the previous test."""
    from adamas.federated.flower import client_app  # Flower may not be installed
    from adamas.federated.flower.kept_probes import KeptProbes

    client_app._task.cache_clear()
    monkeypatch.setattr(client_app, "_PROBES", KeptProbes())


@pytest.fixture
def same_examples(monkeypatch):
    """Makes all examples of a client equal, so that any noiseless release lies along one direction."""

    def client_data(client, clients):
        x = torch.tensor([[0.5, -1.0, 2.0, 0.25]]).expand(federated_blobs.EXAMPLES, 4).clone()
        return TensorDataset(x, torch.zeros(federated_blobs.EXAMPLES, dtype=torch.long))

    monkeypatch.setattr(federated_blobs, "client_data", client_data)
