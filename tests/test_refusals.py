"""What would break the promise in some batch of a run is refused: at the public door, on every engine.

The promise: adding or removing any one record moves the whitened sum by at most 1.
"""

import random
from collections import UserDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import adamas
from adamas import Geometry, UnsupportedError, clipped_sum, rules
from adamas._nests import batch_length, map_tensors
from adamas._replay import Silent, joined, release_of, run_geometry, whitened_sums
from adamas.engines import ENGINES, Stacked
from adamas.noise import GaussianNoise
from adamas.privatize import privatize

N = 40


def every_engine(test):
    return pytest.mark.parametrize("engine", ENGINES)(test)


def tensors(n=N):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(n, 5, generator=generator), torch.randint(2, (n,), generator=generator)


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def make_run(model, the_loss=loss, data=None, **changes):
    settings = {"batch_size": 12, "steps": 6, "noise_multiplier": 1.0, "delta": 1e-3, "seed": 0} | changes
    rule = rules.SGD(model.parameters(), lr=0.1)
    return adamas.make_private(model, rule, data or TensorDataset(*tensors()), the_loss, **settings)


def train(run):
    for _ in run:
        pass
    return run


def influence(run, indices, one):
    """How far the whitened sum moves when one record is taken away."""
    run.noise = Silent(0)
    sums = [
        joined(whitened_sums(run, release_of(run, rows, 0), run_geometry(run)))
        for rows in (indices, [i for i in indices if i != one])
    ]
    return float((sums[0] - sums[1]).norm())


# --- parameters -----------------------------------------------------------------------------------------


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))

    def forward(self, x):
        return (self.layer(x) * self.phase).abs()


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_a_complex_parameter_is_refused_by_name(engine):
    with pytest.raises(UnsupportedError, match=r"'phase' .* is complex .* torch.view_as_complex"):
        make_run(Complex(), engine=engine)


def test_a_complex_parameter_is_refused_by_the_geometry():
    p = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(UnsupportedError, match="view_as_complex"):
        clipped_sum({p: torch.zeros(4, 3, dtype=torch.complex64)}, Geometry.ball([p]))


@every_engine
def test_a_complex_parameter_that_is_frozen_or_held_as_two_real_ones_trains(engine):
    class Real(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 2)
            self.phase = nn.Parameter(torch.ones(2, 2))

        def forward(self, x):
            return torch.view_as_real(self.layer(x) * torch.view_as_complex(self.phase)).sum(-1)

    model = Complex()
    model.phase.requires_grad_(False)
    train(make_run(model, engine=engine))
    train(make_run(Real(), engine="loop"))


# --- batches --------------------------------------------------------------------------------------------


class Weighted(TensorDataset):
    """Examples with something beside their tensors."""

    def __init__(self, beside):
        super().__init__(*tensors())
        self._beside = beside

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return {"x": x, "y": y, "beside": self._beside(index)}


def beside_loss(model, batch):
    values = [len(value) if isinstance(value, str) else float(value) for value in batch["beside"]]
    return F.cross_entropy(model(batch["x"]), batch["y"], reduction="none") * sum(values)


def as_list(examples):
    x, y = (torch.stack([example[name] for example in examples]) for name in "xy")
    return {"x": x, "y": y, "beside": [example["beside"] for example in examples]}


@every_engine
@pytest.mark.parametrize(
    ("beside", "kind"), [(lambda i: "a" * i, "str"), (float, "float"), (np.float32, "float32")]
)
def test_what_is_no_tensor_is_refused_with_its_place(engine, beside, kind):
    with pytest.raises(UnsupportedError, match=rf"batch\['beside'\]\[0\] is of type {kind}.*collate_fn"):
        make_run(nn.Linear(5, 2), beside_loss, Weighted(beside), collate_fn=as_list, engine=engine)


@every_engine
def test_what_is_no_tensor_is_refused_in_every_batch_of_a_run(engine):
    loud = False

    def collate(examples):
        x, y = (torch.stack(part) for part in zip(*examples, strict=True))
        return x, y, np.ones(len(examples)) if loud else None

    run = make_run(nn.Linear(5, 2), collate_fn=collate, engine=engine)
    loud = True
    with pytest.raises(UnsupportedError, match=r"batch\[2\] is of type ndarray"):
        train(run)
    assert run.steps_done == 0
    assert not run.ledger.entries


def test_what_is_beside_the_items_of_a_batch_does_not_reach_the_loss():
    class Encoding(UserDict):
        texts = None

    class Named(dict):
        texts = None

    for kind in (Encoding, Named):
        batch = kind(x=torch.ones(3, 2))
        batch.texts = ["a", "b", "c"]
        mapped = map_tensors(lambda x: x[:1], batch)
        assert type(mapped) is kind
        assert mapped["x"].shape == (1, 2)
        assert mapped.texts is None
        assert batch.texts == ["a", "b", "c"]
    assert batch_length([torch.ones(3), None, {"y": torch.zeros(3, 1)}]) == 3


# --- weights --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch_size", [1, 1000, 10**6, 10**9])
def test_weights_that_float32_cannot_hold_are_zero(dtype, batch_size):
    p = nn.Parameter(torch.zeros(5, dtype=dtype))
    for norm in (*np.geomspace(1e37, 7.99e37, 60), *np.geomspace(1e25, 1e37, 60)):
        rows = torch.full((1, 5), float(norm) / 5**0.5, dtype=dtype)
        released = privatize(
            [(Stacked({p: rows}), 0)],
            Geometry.ball([p]),
            noise_multiplier=0.0,
            expected_batch_size=batch_size,
            noise=GaussianNoise(0),
            record=lambda: None,
        )
        length = float((released.mean[p].double() * batch_size).norm())
        assert length <= 1 + 1e-6
        assert length == 0 or length == pytest.approx(1, rel=1e-6)
