"""Shared by tests: helpers of `small_runs`."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import adamas
from adamas import rules

N = 60


def loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def make_data(n=N, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def make_model(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def make_run(model=None, rule=None, data=None, **changes):
    model = model or make_model()
    rule = rule or rules.Adam(model.parameters(), lr=0.01)
    arguments = {"batch_size": 12, "steps": 6, "noise_multiplier": 1.0, "delta": 1e-3, "seed": 7} | changes
    return adamas.make_private(model, rule, data or make_data(), loss, **arguments)


def finish(run):
    for _ in run:
        pass
    return torch.nn.utils.parameters_to_vector(run.model.parameters()).detach()
