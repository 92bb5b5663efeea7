"""Logs a private training on handwritten digits to MLflow.

    pip install 'adamas[demo,mlflow]'
    python examples/watching/log_to_mlflow.py

Without a tracking server, MLflow writes to a file in the current folder.
"""

import os

import mlflow
import torch
from torch import nn
from torch.nn import functional as F

import adamas
from adamas import data, rules
from adamas.callbacks import MLflow

EPOCHS = int(os.environ.get("EPOCHS", "10"))


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Returns one loss per example."""
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


digits = data.load("digits")
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
rule = rules.AdamBC(model.parameters(), lr=3e-3)
with mlflow.start_run() as tracked:
    run = adamas.make_private(
        model,
        rule,
        digits.train,
        loss,
        batch_size=256,
        epochs=EPOCHS,
        epsilon=3.0,
        delta=1e-5,
        callbacks=[MLflow()],
    )
    for _ in run:
        pass
print(f"epsilon {run.epsilon()}, run {tracked.info.run_id}")
