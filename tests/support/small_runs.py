"""Private runs that take milliseconds: 60 examples of five features, a network of 34 weights, six steps.

`make_run` passes any option on to `adamas.make_private`. The seed is fixed, so runs are equal bit for bit.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import adamas
from adamas import rules

N = 60


def loss(model, batch):
    """Returns the cross-entropy of each example."""
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def make_data(n=N, seed=0, dtype=torch.float32):
    """Makes `n` examples of two classes. The sign of the first feature is the class."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=generator)
    return TensorDataset(x.to(dtype), (x[:, 0] > 0).long())


def make_model(seed=0, dtype=torch.float32):
    """Makes the network. Its weights depend on `seed` only."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def make_run(model=None, rule=None, data=None, **changes):
    """Makes a run of Adam for six steps, with noise. `changes` replace options of `adamas.make_private`."""
    model = model or make_model()
    rule = rule or rules.Adam(model.parameters(), lr=0.01)
    arguments = {"batch_size": 12, "steps": 6, "noise_multiplier": 1.0, "delta": 1e-3, "seed": 7} | changes
    return adamas.make_private(model, rule, data or make_data(), loss, **arguments)


def finish(run):
    """Runs the remaining steps, and returns the weights as one vector."""
    for _ in run:
        pass
    return torch.nn.utils.parameters_to_vector(run.model.parameters()).detach()
