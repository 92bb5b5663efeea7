"""Logs a private training on handwritten digits to TensorBoard.

    pip install 'adamas[demo,tensorboard]'
    python examples/watching/log_to_tensorboard.py
    tensorboard --logdir runs/tensorboard

Everything logged is public.
"""

import os

import torch
from torch import nn
from torch.nn import functional as F

import adamas
from adamas import data, rules
from adamas.callbacks import TensorBoard

FOLDER = os.environ.get("FOLDER", "runs/tensorboard")
EPOCHS = int(os.environ.get("EPOCHS", "10"))


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Returns one loss per example."""
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


digits = data.load("digits")
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
rule = rules.AdamBC(model.parameters(), lr=3e-3)
run = adamas.make_private(
    model,
    rule,
    digits.train,
    loss,
    batch_size=256,
    epochs=EPOCHS,
    epsilon=3.0,
    delta=1e-5,
    callbacks=[TensorBoard(FOLDER)],
)
for _ in run:
    pass
print(f"epsilon {run.epsilon()}, events in {FOLDER}")
