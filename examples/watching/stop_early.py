"""Stops a private training when a score no longer rises, on public or on private validation data.

    pip install 'adamas[demo]'
    VALIDATION=private python examples/watching/stop_early.py

A private score costs a budget of its own, which protects the validation records.
"""

import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import random_split

import adamas
from adamas import data, rules
from adamas.callbacks import EarlyStopping, PaidScore

VALIDATION = os.environ.get("VALIDATION", "public")
EPOCHS = int(os.environ.get("EPOCHS", "40"))


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Returns one loss per example."""
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def right(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Tells for each example whether the answer is right."""
    x, y = batch
    return model(x).argmax(1) == y


def public_score(model: nn.Module) -> float:
    """Returns the accuracy on the test digits, as if they were public."""
    x, y = digits.test[:]
    return float(right(model, [x, y]).float().mean())


digits = data.load("digits")
train, validation = random_split(digits.train, [0.8, 0.2], torch.Generator().manual_seed(0))
paid_score = PaidScore(right, validation, epsilon=1.0, delta=1e-4, evaluations=EPOCHS // 4)
private = VALIDATION == "private"
stopping = (
    EarlyStopping(paid_score, patience=2, every=4 * 5) if private else EarlyStopping(public_score, patience=4)
)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
rule = rules.AdamBC(model.parameters(), lr=3e-3)
run = adamas.make_private(
    model,
    rule,
    train,
    loss,
    batch_size=256,
    epochs=EPOCHS,
    epsilon=3.0,
    delta=1e-5,
    callbacks=[stopping],
)
for _ in run:
    pass
print(f"{run.steps_done} of {run.steps} steps, score {stopping.scores[-1][1]:.3f}")
print(f"epsilon of a training record: {run.epsilon()} of 3")
if private:
    print(f"epsilon of a validation record: {paid_score.ledger.epsilon(1e-4)} of 1")
