"""Sabotage a run, and test which row of `adamas check` catches it.

`make_private` makes the run, which is then changed as a faulty integration would change it. A defect in the
user's own model, loss or data may also be refused by `make_private` or by a release: that counts as caught.
"""

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import adamas
import adamas.check
import adamas.privatize
from adamas import rules
from adamas.check import CHECKS, FAIL, check
from tests.support.small_runs import loss

N, B = 400, 40
REFUSED = "a run that can be made"
RATE, SIZES, ANEW = "sampling as stated", "batch sizes as stated", "batches drawn anew"
SENSITIVITY, LARGE = "sensitivity in the geometry", "large example"
MIXED, GRADIENTS, STATE = "examples mixed by a layer", "gradients as autograd's", "state between batches"
TENSORS, ROWS = "batch of tensors", "row for each example"
REAL, MINE = "real parameters", "parameters of the model only"


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 6, generator=generator)
    return TensorDataset(x, (x[:, 0] + x[:, 1] > 0).long())


class Examples(Dataset):
    """Gives the same examples one by one, so that collate_fn is called."""

    def __init__(self):
        self.x, self.y = data().tensors

    def __len__(self):
        return N

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Model(nn.Module):
    """Has a frozen parameter, a buffer and an attribute that a defect may change."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)
        self.register_buffer("seen", torch.zeros(6))
        self.kept = torch.zeros(6)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)) * self.frozen)


def made(loss=loss, model=Model, dataset=None, **changes):
    """Makes a sound run; `changes` replace options of `adamas.make_private`."""
    settings = {"batch_size": B, "steps": 12, "noise_multiplier": 1.0, "delta": 1e-3, "accountant": "rdp"}
    torch.manual_seed(0)
    model = model()
    rule = rules.Adam(model.parameters(), lr=0.01)
    return adamas.make_private(model, rule, dataset or data(), loss, **({"seed": 5} | settings | changes))


def rows_of(monkeypatch, make_run, *names):
    """Returns the rows `names` by name, of a check that replays nothing else."""
    monkeypatch.setattr(adamas.check, "CHECKS", [one for one in CHECKS if one.name in names])
    return {row.name: row for row in check(make_run)}


def assert_caught(monkeypatch, make_run, *names):
    """Passes if the run is refused, or if all rows `names` fail and name a remedy."""
    rows = rows_of(monkeypatch, make_run, *names)
    if REFUSED in rows:
        assert rows[REFUSED].verdict == FAIL
        return
    assert {name: row.verdict for name, row in rows.items()} == dict.fromkeys(names, FAIL), rows
    assert all(row.seen and row.remedy for row in rows.values())
