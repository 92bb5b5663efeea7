"""Trains privately on handwritten digits with Hugging Face `accelerate`, on one process or on several.

    pip install 'adamas[demo,transformers]'
    python examples/accelerate/train.py
    torchrun --standalone --nproc-per-node 2 examples/accelerate/train.py

Accelerate chooses the device and the ranks, prepares the data for the evaluation, and gathers its results.
Model, rule and training data are not prepared: the private run draws the batches, deals them out and steps
the rule.
"""

import os

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import adamas
from adamas import data, rules

EPOCHS = int(os.environ.get("EPOCHS", "30"))
EPSILON, DELTA = 3.0, 1e-5
BATCH_SIZE = 256


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Returns one loss per example."""
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def main() -> None:
    """Trains, and prints the accuracy on the main process."""
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)  # the same initial weights on every rank
    digits = data.load("digits")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    model.to(accelerator.device)
    run = adamas.make_private(
        model,
        rules.AdamBC(model.parameters(), lr=1e-2),
        digits.train,
        loss,
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        epsilon=EPSILON,
        delta=DELTA,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR,
        distributed=accelerator.num_processes > 1,
    )
    for _ in run:
        pass

    loader = accelerator.prepare(DataLoader(digits.test, batch_size=64))
    right = []
    with torch.no_grad():
        for x, y in loader:
            right.append(accelerator.gather_for_metrics(model(x).argmax(1) == y))
    accuracy = torch.cat(right).float().mean()
    accelerator.print(
        f"{accelerator.num_processes} ranks, epsilon {run.epsilon()}, test accuracy {accuracy:.1%}"
    )
    accelerator.end_training()


if __name__ == "__main__":
    main()
