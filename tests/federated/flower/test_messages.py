"""Messages preserve names, dtypes and values."""

import pytest
import torch

pytest.importorskip("flwr")

from adamas.federated.flower.messages import pack, unpack


def test_unpacking_restores_what_was_packed():
    records = {"a": {"x": torch.arange(3.0), "y.z": torch.ones(2, 2, dtype=torch.float64)}, "b": {}}
    words = {"settings": "text", "round": {"number": 1}}
    got, said = unpack(pack(records, words))
    assert said == words
    assert got.keys() == records.keys()
    for name, arrays in records.items():
        assert got[name].keys() == arrays.keys()
        for key, value in arrays.items():
            assert got[name][key].dtype == value.dtype
            assert torch.equal(got[name][key], value)
