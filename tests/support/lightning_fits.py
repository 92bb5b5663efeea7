"""Small trainings with Lightning's Trainer, and the same ones without it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import adamas
from adamas import rules
from adamas.integrations.lightning import PrivateTraining

N, BATCH, EPOCHS = 40, 8, 3
STEPS = EPOCHS * N // BATCH
TERMS = {"noise_multiplier": 1.0, "delta": 1e-3, "accountant": "rdp", "seed": 3}


def records(seed: int = 1, n: int = N) -> TensorDataset:
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x.sum(1) > 0).long())


class Classifier(pl.LightningModule):
    """A small classifier: the minimum that a user writes."""

    def __init__(self, rule: Callable[..., torch.optim.Optimizer] = rules.AdamBC) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 2)
        self.rule = rule

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return F.cross_entropy(self.layer(x), y, reduction="none")

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.layer(x), y))

    def configure_optimizers(self) -> Any:
        return self.rule(self.parameters(), lr=0.05)


class Watcher(pl.Callback):
    """Keeps what a callback can see of a training."""

    def __init__(self) -> None:
        self.gradients: list[Tensor] = []
        self.outputs: list[Any] = []
        self.batches: list[Any] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.batches.append(batch)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.gradients.append(torch.cat([p.grad.flatten() for p in pl_module.parameters()]).clone())

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.outputs.append(outputs)


def trainer(
    folder: Path, *, private: dict[str, Any] | None = None, callbacks: Sequence[Any] = (), **options: Any
) -> pl.Trainer:
    """Makes a Trainer with a private strategy, without logger and checkpoints unless they are asked for."""
    defaults: dict[str, Any] = {
        "max_epochs": EPOCHS,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": any(isinstance(one, pl.callbacks.ModelCheckpoint) for one in callbacks),
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "log_every_n_steps": 1,
        "default_root_dir": folder,
    }
    strategy = PrivateTraining(**(TERMS | (private or {})))
    return pl.Trainer(strategy=strategy, callbacks=list(callbacks), **(defaults | options))


def loader(data: Any = None, **options: Any) -> DataLoader[Any]:
    return DataLoader(
        records() if data is None else data, **({"batch_size": BATCH, "shuffle": True} | options)
    )


def public() -> DataLoader[Any]:
    return DataLoader(records(2), batch_size=N)


def weights(module: torch.nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def plain_run(module: pl.LightningModule, steps: int = STEPS, **options: Any) -> adamas.run.PrivateRun:
    """Trains the same module by `make_private` alone."""

    def loss(model: Any, batch: Any) -> Tensor:
        x, y = batch
        return F.cross_entropy(model.layer(x), y, reduction="none")

    options = {"batch_size": BATCH, "steps": steps} | TERMS | options
    run = adamas.make_private(module, module.configure_optimizers(), records(), loss, **options)
    for _ in run:
        pass
    return run
