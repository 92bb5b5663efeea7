"""Trains privately on handwritten digits with Lightning: checkpoints, logs, early stopping, resuming.

    pip install 'adamas[demo,lightning]'
    python examples/lightning/train.py

After a crash, the same command with CHECKPOINT=runs/lightning/last.ckpt continues the training.
"""

import os

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from adamas import data, rules
from adamas.integrations.lightning import PrivateTraining

FOLDER = os.environ.get("FOLDER", "runs/lightning")
EPOCHS = int(os.environ.get("EPOCHS", "20"))
CHECKPOINT = os.environ.get("CHECKPOINT")
EPSILON, DELTA = 3.0, 1e-5


class Digits(pl.LightningModule):
    """A classifier of digits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Returns one loss per example. Everything computed here is private, so nothing is logged."""
        x, y = batch
        return F.cross_entropy(self.layers(x), y, reduction="none")

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        """Logs the accuracy on public data."""
        x, y = batch
        self.log("accuracy", (self.layers(x).argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> dict[str, object]:
        """Returns a rule, with a scheduler for its learning rate."""
        rule = rules.AdamBC(self.parameters(), lr=1e-2)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(rule, steps)
        return {"optimizer": rule, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    """Trains, and prints epsilon and the accuracy."""
    pl.seed_everything(0)  # the initial weights; sampling and noise have a secret seed
    digits = data.load("digits")
    private = PrivateTraining(epsilon=EPSILON, delta=DELTA)
    trainer = pl.Trainer(
        strategy=private,
        accelerator="cpu",
        max_epochs=EPOCHS,
        logger=CSVLogger(FOLDER),
        log_every_n_steps=1,
        callbacks=[
            EarlyStopping("accuracy", mode="max", patience=5),
            LearningRateMonitor(),
            ModelCheckpoint(FOLDER, monitor="accuracy", mode="max", save_last=True),
        ],
    )
    train, test = DataLoader(digits.train, batch_size=256, shuffle=True), DataLoader(digits.test, 256)
    trainer.fit(Digits(), train, test, ckpt_path=CHECKPOINT)
    (result,) = trainer.validate(dataloaders=test, ckpt_path="best", verbose=False)
    print(f"epsilon {private.run.epsilon()}, best accuracy {result['accuracy']:.1%}")


if __name__ == "__main__":
    main()
