"""Small runs to diagnose, and their values computed by hand."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import adamas
from adamas import PrivateGradient, rules
from adamas.diagnostics import QUANTILES


def loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def make_data(n=60, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 5, generator=generator)
    return TensorDataset(x.to(dtype), (x[:, 0] > 0).long())


def make_run(rule=None, dtype=torch.float32, **changes):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)
    arguments = {"batch_size": 12, "steps": 6, "noise_multiplier": 1.0, "delta": 1e-3, "seed": 7} | changes
    made = rules.Adam(model.parameters(), lr=0.01) if rule is None else rule(model.parameters())
    return adamas.make_private(model, made, make_data(dtype=dtype), loss, **arguments)


def finish(run):
    for _ in run:
        pass
    return torch.nn.utils.parameters_to_vector(run.model.parameters()).detach()


def feed(rule, gradients, variances):
    """Steps of a rule on given releases: a list of arrays and variances per step, for one parameter."""
    (p,) = rule.trainable()
    for g, variance in zip(gradients, variances, strict=True):
        PrivateGradient({p: torch.as_tensor(g, dtype=p.dtype)}, {p: variance}).write_to(rule)
        rule.step()
    return p


def by_hand(gradients, variances, betas, lr, floor=None, eps=1e-8):
    """The values of one parameter with NumPy, from the definitions and not from the rule's state."""
    t, (b1, b2) = len(gradients), betas
    w1 = (1 - b1) * b1 ** np.arange(t)[::-1] / (1 - b1**t)
    w2 = (1 - b2) * b2 ** np.arange(t)[::-1] / (1 - b2**t)
    g = np.array(gradients)
    m, v = np.tensordot(w1, g, 1), np.tensordot(w2, g**2, 1)
    phi = float(np.dot(w2, variances))
    denominator = np.sqrt(v) + eps if floor is None else np.sqrt(np.maximum(v - phi, floor))
    return {
        "coordinates": m.size,
        "on_floor": None if floor is None else float(np.mean(v - phi <= floor)),
        "noise_share": phi / v.mean(),
        "effective_lr": {f"{q}%": float(np.percentile(lr / denominator, q)) for q in QUANTILES},
        "update_rms": float(np.sqrt(np.mean((lr * m / denominator) ** 2))),
        "signal_to_noise": float((m**2).sum() / ((w1**2).sum() * phi * m.size)),
    }


GRADIENTS = np.random.default_rng(3).normal(size=(7, 4, 5)) * 2
VARIANCES = [3.0] * 7


def check(seen, expected):
    for key, value in expected.items():
        assert seen[key] == (None if value is None else pytest.approx(value, rel=1e-10)), key
