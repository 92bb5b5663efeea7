"""Trains privately on handwritten digits, on several processes and with a checkpoint.

    torchrun --standalone --nproc-per-node 2 examples/distributed/train.py

Each process runs this script. After a crash the same command continues from the checkpoint.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import adamas
from adamas import data, rules

CHECKPOINT = os.environ.get("CHECKPOINT", "digits.safetensors")
STEPS = int(os.environ.get("STEPS", "60"))


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Returns one loss per example."""
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def main() -> None:
    """Trains, and prints the accuracy on one rank."""
    torch.manual_seed(0)  # the same initial weights on every rank
    digits = data.load("digits")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    rule = rules.MacAdam(model.parameters(), lr=3e-3)
    run = adamas.make_private(
        model,
        rule,
        digits.train,
        loss,
        batch_size=256,
        steps=STEPS,
        epsilon=3.0,
        delta=1e-5,
        checkpoint=CHECKPOINT,
        checkpoint_every=10,
        resume=True,
        distributed=True,
    )
    for _ in run:
        pass
    if run.ranks is not None and run.ranks.is_writer:
        x, y = digits.test[:]
        with torch.no_grad():
            accuracy = (model(x).argmax(1) == y).float().mean()
        print(f"{run.ranks.world_size} ranks, epsilon {run.epsilon()}, test accuracy {accuracy:.1%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
