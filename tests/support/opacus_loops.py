"""Small loops in the style of Opacus, for `adamas.integrations.opacus` and for Opacus itself."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from adamas.integrations.opacus import PrivacyEngine


def blobs(n=60, classes=3, features=4, seed=1):
    """Returns features of lengths that differ, and labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, features, generator=generator) * torch.linspace(0.1, 4, n).view(-1, 1)
    return x, torch.randint(0, classes, (n,), generator=generator)


def mlp(features=4, classes=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, classes))


def private(
    model=None,
    data=None,
    *,
    batch_size=10,
    optimizer=None,
    engine=None,
    epsilon=None,
    loader_options=None,
    **options,
):
    """Makes a private loop: the engine, and what `make_private` returned."""
    model = mlp() if model is None else model
    data = TensorDataset(*blobs()) if data is None else data
    engine = PrivacyEngine(accountant="rdp", seed=0) if engine is None else engine
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5) if optimizer is None else optimizer
    loader = DataLoader(data, batch_size=batch_size, **(loader_options or {}))
    given = {"module": model, "optimizer": optimizer, "data_loader": loader, "max_grad_norm": 1.0} | options
    if epsilon is None:
        given = {"noise_multiplier": 1.0} | given
        return engine, *engine.make_private(**given)
    given = {"target_epsilon": epsilon, "target_delta": 1e-3, "epochs": 2} | given
    return engine, *engine.make_private_with_epsilon(**given)


def train(module, optimizer, loader, *, epochs=1, criterion=F.cross_entropy, steps=None):
    """Trains as a script for Opacus does, at most so many steps of each epoch."""
    for _ in range(epochs):
        for step, (x, y) in enumerate(loader):
            if step == steps:
                break
            optimizer.zero_grad()
            loss = criterion(module(x), y)
            loss.backward()
            optimizer.step()
