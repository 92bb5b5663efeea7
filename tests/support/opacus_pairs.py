"""Pairs of a model and its copy wrapped by Opacus.

Import this module only where Opacus is installed.
"""

import copy

import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn

import adamas
from adamas import rules

opacus_warnings = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
    pytest.mark.filterwarnings("ignore:Optimal order is the:UserWarning"),
]


def seeded(module, seed=0):
    """Draws the weights of a module from the seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / p.shape[-1] ** 0.5)
    return module


def conv_model():
    return seeded(
        nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.GroupNorm(2, 4),
            nn.Flatten(),
            nn.Linear(64, 8),
            nn.Tanh(),
            nn.Linear(8, 3, bias=False),
        )
    )


def images(n=12, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, 8, 8, generator=generator) * torch.linspace(0.1, 3, n).view(-1, 1, 1, 1)
    return x, torch.randint(0, 3, (n,), generator=generator)


def opacus_pair(model, *, lr=1.0, noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=1):
    """Makes a copy of a model wrapped by Opacus, and its private SGD optimizer."""
    wrapped = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=lr),
        noise_multiplier=noise_multiplier,
        max_grad_norm=max_grad_norm,
        expected_batch_size=expected_batch_size,
        loss_reduction="mean",  # divides the sum by expected_batch_size
        generator=torch.Generator().manual_seed(0),
    )
    return wrapped, optimizer


def run_of(model, dataset, loss, *, lr=1.0, **settings):
    """Makes a private run of SGD."""
    return adamas.make_private(
        model,
        rules.SGD(model.parameters(), lr=lr),
        dataset,
        loss,
        delta=1e-5,
        seed=0,
        progress=False,
        **settings,
    )
