"""A small run in float64, the same in one process and in two."""

import numpy as np
import torch
from torch import nn

import adamas
from adamas import rules
from tests.support import small_runs
from tests.support.small_runs import N, loss

SEED = 7


def make_data(n=N):
    return small_runs.make_data(n, dtype=torch.float64)


def make_model(seed=0):
    return small_runs.make_model(seed, dtype=torch.float64)


def make_rule(name, model, **options):
    if name == "stock":
        return torch.optim.Adam(model.parameters(), lr=0.01)
    if name == "adadps":
        scales = {p: torch.linspace(0.5, 2.0, p.numel()).view(p.shape) for p in model.parameters()}
        options |= {"preconditioner": scales}
    return rules.RULES[name](model.parameters(), **options)


def make_run(rule="macadam", distributed=False, model=None, data=None, loss=loss, lr=0.05, **changes):
    model = model or make_model()
    arguments = {"batch_size": 12, "steps": 6, "noise_multiplier": 1.0, "delta": 1e-3, "seed": SEED}
    arguments |= {"accountant": "rdp"} | changes  # rdp is the fastest accountant
    made = make_rule(rule, model, **({} if rule == "stock" else {"lr": lr}))
    return adamas.make_private(model, made, data or make_data(), loss, distributed=distributed, **arguments)


def vector(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy().copy()


def values(mapping):
    """Joins the values of a mapping by parameter, in its order."""
    return np.concatenate([np.ravel(v.numpy() if torch.is_tensor(v) else v) for v in mapping.values()])


def outcome(run):
    """Trains to the end, and returns all that two equal runs must agree on."""
    releases = [(values(s.release.mean), values(s.release.noise_variance)) for s in run]
    state = run.state_dict()
    geometry = run.geometry()
    return {
        "parameters": vector(run.model),
        "releases": np.concatenate([r for r, _ in releases]),
        "variances": np.concatenate([v for _, v in releases]),
        "scale": values(geometry.scale),
        "center": values(geometry.center or {0: 0.0}),
        "epsilon": run.epsilon(),
        "ledger": repr(run.ledger.entries),
        "draws": state["noise"]["draws"],
        "steps_done": run.steps_done,
    }
