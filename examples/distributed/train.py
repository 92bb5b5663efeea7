"""Private training on several processes, with a checkpoint: handwritten digits.

    torchrun --standalone --nproc-per-node 2 examples/distributed/train.py

Each process runs this script. After a crash the same command continues from the checkpoint.
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import adamas
from adamas import data, rules
from adamas.distributed import write_once

CHECKPOINT = Path(os.environ.get("CHECKPOINT", "digits.pt"))
STEPS = int(os.environ.get("STEPS", "60"))
STEPS_BETWEEN_CHECKPOINTS = 10


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """One loss per example."""
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def save(run: adamas.PrivateRun) -> None:
    """Writes the state beside the checkpoint first, so that a crash never leaves half a file."""
    new = CHECKPOINT.with_suffix(".new")
    torch.save(run.state_dict(), new)
    new.replace(CHECKPOINT)


def main() -> None:
    """Trains, on every rank."""
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
        distributed=True,
    )
    if CHECKPOINT.exists():
        run.load_state_dict(torch.load(CHECKPOINT))
    for step in run:
        if step.number % STEPS_BETWEEN_CHECKPOINTS == 0 or step.number == step.total:
            write_once(run.ranks, lambda: save(run))
    if run.ranks is not None and run.ranks.is_writer:
        x, y = digits.test[:]
        with torch.no_grad():
            accuracy = (model(x).argmax(1) == y).float().mean()
        print(f"{run.ranks.world_size} ranks, epsilon {run.epsilon():.3f}, test accuracy {accuracy:.1%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
