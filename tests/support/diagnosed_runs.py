"""Small runs to diagnose, and their diagnostics computed by hand."""

import numpy as np
import pytest
import torch

from adamas import PrivateGradient
from adamas.diagnostics import QUANTILES
from tests.support import small_runs
from tests.support.small_runs import make_data, make_model


def make_run(rule=None, dtype=torch.float32, **changes):
    """Makes a small run. `rule` is a function of the parameters."""
    model = make_model(dtype=dtype)
    made = None if rule is None else rule(model.parameters())
    return small_runs.make_run(model, made, make_data(dtype=dtype), **changes)


def feed(rule, gradients, variances):
    """Steps a rule of one parameter on given gradients and noise variances, and returns the parameter."""
    (p,) = rule.trainable()
    for g, variance in zip(gradients, variances, strict=True):
        PrivateGradient({p: torch.as_tensor(g, dtype=p.dtype)}, {p: variance}).write_to(rule)
        rule.step()
    return p


def by_hand(gradients, variances, betas, lr, floor=None, eps=1e-8):
    """Computes the diagnostics of one parameter from their definitions, not from the rule's state."""
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
