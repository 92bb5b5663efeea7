"""Loggers and progress bars of Lightning show epsilon as an upper bound, and train with every engine."""

import csv
import io
import sys
from pathlib import Path

import pytest

pytest.importorskip("lightning")

import lightning.pytorch as pl
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger

import adamas
from tests.support import lightning_fits as fits

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Bounds(pl.Callback):
    """Keeps, after each step, the bound of the run and the metrics of the Trainer."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, *args):
        self.seen.append((trainer.strategy.run.epsilon_bound(), dict(trainer.progress_bar_metrics)))


@pytest.mark.parametrize("noise_multiplier", [0.7, 1.0, 5.0, 90.0])
def test_no_logger_and_no_bar_shows_less_than_the_bound(noise_multiplier, tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    bounds, logger = Bounds(), TensorBoardLogger(tmp_path)
    private = {"noise_multiplier": noise_multiplier}
    trainer = fits.trainer(tmp_path, callbacks=[bounds], logger=logger, private=private)
    trainer.fit(fits.Classifier(), fits.loader())
    board = event_accumulator.EventAccumulator(logger.log_dir).Reload()
    for (bound, bar), logged in zip(bounds.seen, board.Scalars("epsilon"), strict=True):
        assert set(bar) == {"eps"}
        assert bound <= logged.value <= bound * (1 + 1e-6)
        assert bound <= float(f"{bar['eps']:.3f}") <= bound * 1.01 + 1e-3
        assert bound <= float(f"{bar['eps']:.3g}") <= bound * 1.01 + 1e-3


def test_a_bar_is_shown_where_standard_output_has_ascii_only(tmp_path, monkeypatch):
    with io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict") as out:
        monkeypatch.setattr(sys, "stdout", out)
        trainer = fits.trainer(
            tmp_path, callbacks=[pl.callbacks.TQDMProgressBar()], enable_progress_bar=True, max_epochs=1
        )
        trainer.fit(fits.Classifier(), fits.loader())
        out.flush()
        assert "eps=" in out.buffer.getvalue().decode()


@pytest.mark.parametrize("every", [4, 5, 50])
def test_the_last_entry_of_a_logger_has_all_that_was_spent(every, tmp_path):
    logger = CSVLogger(tmp_path)
    stop = pl.callbacks.EarlyStopping(
        "epsilon", mode="max", stopping_threshold=2.5, check_on_train_epoch_end=True
    )
    trainer = fits.trainer(tmp_path, logger=logger, callbacks=[stop], log_every_n_steps=every)
    trainer.fit(fits.Classifier(), fits.loader())
    assert trainer.global_step in (5, 10)
    with open(Path(logger.log_dir) / "metrics.csv", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["epsilon"]]
    assert int(rows[-1]["step"]) == trainer.global_step - 1
    assert len({row["step"] for row in rows}) == len(rows)
    assert float(rows[-1]["epsilon"]) >= trainer.strategy.run.epsilon()


@pytest.fixture
def wandb_logger(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    yield WandbLogger(project="adamas", save_dir=tmp_path, mode="offline")  # wandb reads variables only once
    wandb.finish()


def test_wandb_logs_a_training(wandb_logger, tmp_path):
    trainer = fits.trainer(tmp_path, logger=wandb_logger)
    trainer.fit(fits.Classifier(), fits.loader())
    assert wandb_logger.experiment.summary["epsilon"] >= trainer.strategy.run.epsilon()


def test_wandb_that_watches_gradients_is_refused(wandb_logger, tmp_path):
    wandb_logger.watch(module := fits.Classifier(), log="gradients")
    with pytest.raises(adamas.UnsupportedError, match="gradient hook, which would see"):
        fits.trainer(tmp_path, logger=wandb_logger).fit(module, fits.loader())


def test_the_engine_that_watches_everything_names_the_bar_and_trains_without_it(tmp_path):
    options = {"private": {"engine": "loop"}, "logger": CSVLogger(tmp_path), "max_epochs": 1}
    trainer = fits.trainer(
        tmp_path, callbacks=[pl.callbacks.RichProgressBar()], enable_progress_bar=True, **options
    )
    with pytest.raises(adamas.UnsupportedError, match="enable_progress_bar=False"):
        trainer.fit(fits.Classifier(), fits.loader())
    run = trainer.strategy._run  # with an older Lightning, the refusal comes before there is one
    assert run is None or not run.ledger.entries
    trainer = fits.trainer(tmp_path, **options)
    trainer.fit(fits.Classifier(), fits.loader())
    assert trainer.global_step == fits.N // fits.BATCH
