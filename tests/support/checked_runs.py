"""Make runs for `adamas check`, and ask for one row of it."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import adamas
import adamas.privatize
from adamas import rules
from adamas.check import CHECKS
from adamas.check.base import Replay
from tests.support.small_runs import loss

N = 120
NAMES = [one.name for one in CHECKS]


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 6, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def plain():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def maker(make_model=plain, rule="adam", loss=loss, dataset=None, **changes):
    """Returns a function that makes a fresh run; `changes` replace options of `adamas.make_private`."""
    settings = {"batch_size": 20, "steps": 12, "noise_multiplier": 1.0, "delta": 1e-3, "accountant": "rdp"}

    def make_run():
        torch.manual_seed(0)
        model = make_model()
        optimizer = rules.RULES[rule](model.parameters(), lr=0.01)
        return adamas.make_private(model, optimizer, dataset or data(), loss, **(settings | changes))

    return make_run


def look(name, make_run, examples=6):
    """Returns the verdict of the row `name`, and what it saw."""
    (one,) = [one for one in CHECKS if one.name == name]
    return one.look(Replay(make_run, examples))


class Texts(Dataset):
    """Holds integers only, so that a NaN can come only from the loss."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return {"ids": torch.tensor([index % 7, index % 5, index % 3]), "label": torch.tensor(index % 2)}


class Reader(nn.Module):
    """Reads `Texts` with tied, unused and frozen parameters."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 8)
        self.decoder = nn.Linear(8, 8, bias=False)
        self.decoder.weight = self.embedding.weight  # tied
        self.head = nn.Linear(8, 2)
        self.spare = nn.Parameter(torch.zeros(3))  # unused
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)

    def forward(self, ids):
        return self.head(torch.tanh(self.decoder(self.embedding(ids).mean(1))) * self.frozen)


def text_loss(model, batch):
    return F.cross_entropy(model(batch["ids"]), batch["label"], reduction="none")
