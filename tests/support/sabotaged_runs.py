"""Sabotage a run, and see which row of `adamas check` catches it.

The run is made by `make_private` and then changed as a faulty integration would change it. Where the defect
is the user's own, `make_private` or a release may refuse it: that is caught, too."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import adamas
import adamas.check
import adamas.privatize
from adamas import rules
from adamas.check import CHECKS, FAIL, check

N, B = 400, 40
REFUSED = "a run that can be made"
RATE, SIZES, ANEW = "sampling as stated", "batch sizes as stated", "batches drawn anew"
SENSITIVITY, LARGE = "sensitivity in the geometry", "large example"
MIXED, GRADIENTS, STATE = "examples mixed by a layer", "gradients as autograd's", "state between batches"
TENSORS, ROWS = "batch of tensors", "row for each example"
REAL, MINE = "real parameters", "parameters of the model only"


def loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 6, generator=generator)
    return TensorDataset(x, (x[:, 0] + x[:, 1] > 0).long())


class Examples(Dataset):
    """The same, one by one, so that collate_fn has something to do."""

    def __init__(self):
        self.x, self.y = data().tensors

    def __len__(self):
        return N

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)
        self.register_buffer("seen", torch.zeros(6))
        self.kept = torch.zeros(6)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)) * self.frozen)


def made(loss=loss, model=Model, dataset=None, **changes):
    settings = {"batch_size": B, "steps": 12, "noise_multiplier": 1.0, "delta": 1e-3, "accountant": "rdp"}
    torch.manual_seed(0)
    model = model()
    rule = rules.Adam(model.parameters(), lr=0.01)
    return adamas.make_private(model, rule, dataset or data(), loss, **({"seed": 5} | settings | changes))


def rows_of(monkeypatch, make_run, *names):
    """The rows of these names, and nothing more is replayed."""
    monkeypatch.setattr(adamas.check, "CHECKS", [one for one in CHECKS if one.name in names])
    return {row.name: row for row in check(make_run)}


def assert_caught(monkeypatch, make_run, *names):
    rows = rows_of(monkeypatch, make_run, *names)
    if REFUSED in rows:
        assert rows[REFUSED].verdict == FAIL
        return
    assert {name: row.verdict for name, row in rows.items()} == dict.fromkeys(names, FAIL), rows
    assert all(row.seen and row.remedy for row in rows.values())


def sound():
    return made()
