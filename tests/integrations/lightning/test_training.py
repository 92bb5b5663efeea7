"""Trainings with Lightning's Trainer: the same weights as without it, and nothing private in its records."""

import csv
import math
from functools import partial

import pytest
import torch

pytest.importorskip("lightning")

import lightning.pytorch as pl
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch.nn import functional as F
from torch.optim import lr_scheduler

from adamas import rules
from tests.support import lightning_fits as fits

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("rule", [rules.AdamBC, rules.MacAdam, rules.SGD, torch.optim.Adam, torch.optim.SGD])
def test_the_weights_are_those_of_a_plain_run_bit_for_bit(rule, tmp_path):
    module, alone = fits.Classifier(rule), fits.Classifier(rule)
    trainer = fits.trainer(tmp_path)
    trainer.fit(module, fits.loader(), fits.public())
    run = fits.plain_run(alone)
    assert torch.equal(fits.weights(module), fits.weights(alone))
    assert trainer.strategy.run.epsilon() == run.epsilon()
    assert trainer.global_step == run.steps_done == fits.STEPS
    assert not torch.equal(fits.weights(module), fits.weights(fits.Classifier(rule)))


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"max_epochs": 2}, 10),
        ({"max_steps": 7}, 7),
        ({"max_epochs": -1, "max_steps": 6}, 6),
        ({"limit_train_batches": 2}, 6),
        ({"limit_train_batches": 0.4, "max_epochs": 2}, 4),
        ({"min_epochs": 2}, 15),
        ({"barebones": True, "logger": None, "enable_checkpointing": None, "log_every_n_steps": None}, 15),
    ],
)
def test_the_trainers_epochs_and_steps_are_the_plan(options, steps, tmp_path):
    module, alone = fits.Classifier(), fits.Classifier()
    trainer = fits.trainer(tmp_path, **options)
    trainer.fit(module, fits.loader())
    assert trainer.global_step == trainer.strategy.run.steps == trainer.strategy.run.steps_done == steps
    fits.plain_run(alone, steps=steps)
    assert torch.equal(fits.weights(module), fits.weights(alone))


class Scheduled(fits.Classifier):
    def __init__(self, scheduler, **config):
        super().__init__()
        self.made = scheduler, config

    def configure_optimizers(self):
        rule, (make, config) = super().configure_optimizers(), self.made
        return {"optimizer": rule, "lr_scheduler": {"scheduler": make(rule), **config}}


def test_a_scheduler_of_steps_does_what_it_does_in_a_plain_run(tmp_path):
    make = partial(lr_scheduler.CosineAnnealingLR, T_max=fits.STEPS)
    module, alone = Scheduled(make, interval="step"), fits.Classifier()
    fits.trainer(tmp_path).fit(module, fits.loader())
    fits.plain_run(alone, scheduler=lambda rule, steps: make(rule))
    assert torch.equal(fits.weights(module), fits.weights(alone))


def test_a_scheduler_of_epochs_steps_at_their_ends(tmp_path):
    module = Scheduled(partial(lr_scheduler.StepLR, step_size=1, gamma=0.1), interval="epoch")
    trainer = fits.trainer(tmp_path)
    trainer.fit(module, fits.loader())
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.05 * 0.1**fits.EPOCHS)


def test_public_validation_metrics_drive_plateaus_and_early_stopping(tmp_path):
    module = Scheduled(
        partial(lr_scheduler.ReduceLROnPlateau, patience=0, mode="max"), interval="epoch", monitor="val_loss"
    )
    stop = pl.callbacks.EarlyStopping("val_loss", mode="max", patience=1)
    trainer = fits.trainer(tmp_path, callbacks=[stop], max_epochs=8)
    trainer.fit(module, fits.loader(), fits.public())
    run = trainer.strategy.run
    assert trainer.optimizers[0].param_groups[0]["lr"] < 0.05
    assert run.steps_done == trainer.global_step < run.steps == 8 * fits.N // fits.BATCH
    assert run.epsilon() < fits.plain_run(fits.Classifier(), steps=run.steps).epsilon()


def test_nothing_private_reaches_loggers_callbacks_or_checkpoints(tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    loggers = [CSVLogger(tmp_path / "csv"), TensorBoardLogger(tmp_path / "board")]
    seen, saver = fits.Watcher(), pl.callbacks.ModelCheckpoint(dirpath=tmp_path / "saved", monitor="val_loss")
    module = fits.Classifier()
    trainer = fits.trainer(tmp_path, callbacks=[seen, saver], logger=loggers)
    trainer.fit(module, fits.loader(), fits.public())

    with open(next((tmp_path / "csv").rglob("metrics.csv")), encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert set(rows[0]) == {"epoch", "epsilon", "step", "val_loss"}
    logged = [float(row["epsilon"]) for row in rows if row["epsilon"]]
    assert len(logged) == fits.STEPS
    assert logged == sorted(logged)
    assert logged[-1] == pytest.approx(trainer.strategy.run.epsilon())
    board = event_accumulator.EventAccumulator(
        str(next((tmp_path / "board").rglob("events*")).parent)
    ).Reload()
    assert set(board.Tags()["scalars"]) == {"epoch", "epsilon", "val_loss"}
    assert [one.value for one in board.Scalars("epsilon")] == pytest.approx(logged)
    assert set(trainer.callback_metrics) == {"eps", "epsilon", "val_loss"}

    assert all(math.isnan(one["loss"]) for one in seen.outputs)
    assert all(not vars(one) for one in seen.batches)
    saved = torch.load(saver.best_model_path, weights_only=True)
    assert set(saved["state_dict"]) == {"layer.weight", "layer.bias"}
    assert set(saved["adamas"]) == {"delta", "epsilon", "run", "steps_done"}
    assert saved["optimizer_states"] == [{}]
    assert saved["adamas"]["epsilon"] >= trainer.strategy.run.epsilon() - 1e-6


class Data(pl.LightningDataModule):
    def train_dataloader(self):
        return fits.loader(num_workers=0, collate_fn=pairs)

    def val_dataloader(self):
        return fits.public()


def pairs(examples):
    return torch.stack([x for x, _ in examples]), torch.stack([y for _, y in examples])


def test_a_data_module_and_a_bare_data_set_train_like_a_loader(tmp_path):
    modules = [fits.Classifier() for _ in range(2)]
    fits.trainer(tmp_path).fit(modules[0], datamodule=Data())
    fits.trainer(tmp_path, private={"batch_size": fits.BATCH}).fit(modules[1], fits.records())
    fits.plain_run(alone := fits.Classifier())
    assert all(torch.equal(fits.weights(module), fits.weights(alone)) for module in modules)


class Means(fits.Classifier):
    def training_step(self, batch):
        raise AssertionError("not called")


def test_a_loss_of_its_own_and_micro_batches_train_the_same(tmp_path):
    def loss(module, batch):
        return F.cross_entropy(module.layer(batch[0]), batch[1], reduction="none")

    module = Means()
    fits.trainer(tmp_path, private={"loss": loss, "micro_batch_size": 3}).fit(module, fits.loader())
    fits.plain_run(alone := fits.Classifier(), micro_batch_size=3)
    assert torch.equal(fits.weights(module), fits.weights(alone))


class Numbered(fits.Classifier):
    def __init__(self):
        super().__init__()
        self.numbers = set()

    def training_step(self, batch, batch_idx):
        losses = super().training_step(batch, batch_idx)
        return losses * (1 + batch_idx)


def test_training_step_is_told_the_number_of_the_batch(tmp_path):
    fits.trainer(tmp_path, limit_train_batches=1).fit(one := Numbered(), fits.loader())
    fits.trainer(tmp_path, limit_train_batches=1).fit(two := fits.Classifier(), fits.loader())
    assert torch.equal(fits.weights(one), fits.weights(two))  # numbers begin at 0 in each epoch
    fits.trainer(tmp_path, private={"clip_norm": 1e3}).fit(one := Numbered(), fits.loader())
    fits.trainer(tmp_path, private={"clip_norm": 1e3}).fit(two := fits.Classifier(), fits.loader())
    assert not torch.equal(fits.weights(one), fits.weights(two))


def test_an_average_of_the_weights_is_the_result(tmp_path):
    average = pl.callbacks.EMAWeightAveraging(decay=0.5)
    module, alone = fits.Classifier(), fits.Classifier()
    fits.trainer(tmp_path, callbacks=[average]).fit(module, fits.loader())
    fits.plain_run(alone)
    assert not torch.equal(fits.weights(module), fits.weights(alone))
    assert not torch.equal(fits.weights(module), fits.weights(fits.Classifier()))


def test_an_evaluation_uses_the_strategy_as_any_other(tmp_path):
    trainer = fits.trainer(tmp_path)
    trainer.fit(module := fits.Classifier(), fits.loader())
    spent = trainer.strategy.run.epsilon()
    assert trainer.validate(module, fits.public(), verbose=False)[0]["val_loss"] > 0
    assert trainer.strategy.run.epsilon() == spent


@pytest.mark.parametrize(
    ("engine", "noise"),
    [
        *[(engine, "reproducible") for engine in ("bookkeeping", "vmap", "loop")],
        ("bookkeeping", "secure"),
    ],
)
def test_every_engine_and_noise_trains(engine, noise, tmp_path):
    private = {"engine": engine, "noise": noise, "seed": None if noise == "secure" else 3}
    trainer = fits.trainer(tmp_path, private=private, max_steps=2)
    trainer.fit(module := fits.Classifier(), fits.loader(batch_sampler=None, num_workers=1))
    assert trainer.global_step == trainer.strategy.run.steps_done == 2
    if noise == "reproducible":
        fits.plain_run(alone := fits.Classifier(), steps=2, engine=engine)
        assert torch.equal(fits.weights(module), fits.weights(alone))
