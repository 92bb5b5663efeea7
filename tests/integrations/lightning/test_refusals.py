"""What would train without privacy is refused by name, before anything is spent."""

import pytest
import torch

pytest.importorskip("lightning")

import lightning.pytorch as pl
from lightning.pytorch import callbacks
from lightning.pytorch.plugins import AsyncCheckpointIO, DoublePrecision
from lightning.pytorch.profilers import PyTorchProfiler
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.nn import functional as F
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

import adamas
from adamas.integrations.lightning import PrivateTraining
from tests.support import lightning_fits as fits

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def ledger(tmp_path):
    """The ledger of a data set, which shows whether anything was spent or reserved."""
    return adamas.DataLedger.create(tmp_path / "data.ledger", epsilon=1000.0, delta=1e-3)


def refused(ledger, tmp_path, words, *, module=None, data=None, val=None, **options):
    """Fits, expects an error with these words, and checks that nothing was spent."""
    private = {"data_ledger": ledger} | options.pop("private", {})

    def fit():
        trainer = fits.trainer(tmp_path, private=private, **options)
        trainer.fit(module or fits.Classifier(), fits.loader() if data is None else data, val)

    with pytest.raises((ValueError, TypeError, RuntimeError), match=words):
        fit()
    assert ledger.epsilon() == 0
    assert not ledger.spendings()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gradient_clip_val": 1.0}, "gradient_clip_val.*clip_norm="),
        ({"accumulate_grad_batches": 4}, "accumulate_grad_batches.*micro_batch_size="),
        ({"overfit_batches": 2}, "overfit_batches"),
        ({"fast_dev_run": True}, "fast_dev_run.*synthetic"),
        ({"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders_every_n_epochs"),
        ({"detect_anomaly": True}, "detect_anomaly=False"),
        ({"precision": "bf16-mixed"}, "precision"),
        ({"precision": "bf16-true"}, "precision"),
        ({"precision": "64-true"}, "precision"),
        ({"plugins": [DoublePrecision()]}, "precision"),
        ({"plugins": [AsyncCheckpointIO()]}, "plugins"),
        ({"max_epochs": -1}, "fixed number of steps"),
        ({"max_epochs": 0}, "fixed number of steps"),
        ({"limit_train_batches": 0}, "limit_train_batches"),
        ({"devices": 2}, "devices=1"),
        ({"num_nodes": 2}, "num_nodes"),
        ({"profiler": PyTorchProfiler()}, "PyTorchProfiler"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_arguments_of_the_trainer(options, words, ledger, tmp_path):
    refused(ledger, tmp_path, words, **options)


@pytest.mark.parametrize(
    "callback",
    [
        callbacks.BackboneFinetuning(),
        callbacks.BatchSizeFinder(),
        callbacks.DeviceStatsMonitor(),
        callbacks.GradientAccumulationScheduler({1: 2}),
        callbacks.LearningRateFinder(),
        callbacks.ModelPruning("l1_unstructured", amount=0.5),
        callbacks.SpikeDetection(),
        callbacks.StochasticWeightAveraging(1e-2),
        callbacks.ThroughputMonitor(len),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_callbacks_that_train_or_read_on_their_own(callback, ledger, tmp_path):
    refused(ledger, tmp_path, type(callback).__name__, callbacks=[callback])


class Tuned(fits.Classifier):
    lr, batch_size = 0.1, 2

    def train_dataloader(self):
        return fits.loader(batch_size=self.batch_size)


def test_tuners(ledger, tmp_path):
    for tune in ("lr_find", "scale_batch_size"):
        trainer = fits.trainer(tmp_path, private={"data_ledger": ledger})
        with pytest.raises(adamas.UnsupportedError, match="trains on the data before the run"):
            getattr(pl.tuner.Tuner(trainer), tune)(Tuned())
        assert not ledger.spendings()


@pytest.mark.parametrize(
    "hook",
    [
        "backward",
        "configure_gradient_clipping",
        "on_after_batch_transfer",
        "on_before_batch_transfer",
        "optimizer_step",
        "transfer_batch_to_device",
    ],
)
def test_hooks_that_change_gradients_or_batches(hook, ledger, tmp_path):
    kind = type("Changed", (fits.Classifier,), {hook: lambda self, *args, **kwargs: args[0]})
    refused(ledger, tmp_path, f"Changed without {hook}", module=kind())


def test_hooks_of_a_data_module(ledger, tmp_path):
    class Data(pl.LightningDataModule):
        def train_dataloader(self):
            return fits.loader()

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return batch

    refused(ledger, tmp_path, "Data without on_after_batch_transfer", data=Data())


class Manual(fits.Classifier):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class Mean(fits.Classifier):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx).mean()


class Mapping(fits.Classifier):
    def training_step(self, batch, batch_idx):
        return {"loss": super().training_step(batch, batch_idx)}


class Nothing(fits.Classifier):
    def training_step(self, batch, batch_idx):
        return None


class Logging(fits.Classifier):
    def training_step(self, batch, batch_idx):
        losses = super().training_step(batch, batch_idx)
        self.log("train_loss", losses.mean(), prog_bar=True)
        return losses


class LoggingMany(fits.Classifier):
    def training_step(self, batch, batch_idx):
        losses = super().training_step(batch, batch_idx)
        self.log_dict({"train_loss": losses.mean(), "n": float(len(batch[0]))}, batch_size=1)
        return losses


class ManualBackward(fits.Classifier):
    def training_step(self, batch, batch_idx):
        losses = super().training_step(batch, batch_idx)
        self.manual_backward(losses.mean())
        return losses


class Backward(fits.Classifier):
    def training_step(self, batch, batch_idx):
        F.cross_entropy(self.layer(batch[0]), batch[1]).backward()
        return super().training_step(batch, batch_idx)


class Keeping(fits.Classifier):
    def __init__(self):
        super().__init__()
        self.losses = []

    def training_step(self, batch, batch_idx):
        losses = super().training_step(batch, batch_idx)
        self.losses.append(losses.detach())
        return losses


class Stepping(fits.Classifier):
    def training_step(self, batch, batch_idx):
        self.optimizers().step()
        return super().training_step(batch, batch_idx)


class Iterating(fits.Classifier):
    def training_step(self, dataloader_iter):
        return super().training_step(next(dataloader_iter), 0)


class TwoRules(fits.Classifier):
    def configure_optimizers(self):
        return [self.rule([self.layer.weight]), self.rule([self.layer.bias])]


class NoRule(fits.Classifier):
    def configure_optimizers(self):
        return None


class SomeOfIt(fits.Classifier):
    def configure_optimizers(self):
        return self.rule([self.layer.weight])


class OtherScheduler(fits.Classifier):
    def configure_optimizers(self):
        rules = [super(OtherScheduler, self).configure_optimizers() for _ in range(2)]
        return [rules[0]], [torch.optim.lr_scheduler.ConstantLR(rules[1])]


class BatchNorm(fits.Classifier):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Sequential(torch.nn.BatchNorm1d(4), self.layer)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Manual, "automatic_optimization=True"),
        (Mean, 'reduction="none"'),
        (Mapping, "tensor with one loss per example"),
        (Nothing, "tensor with one loss per example"),
        (Logging, "without self.log"),
        (LoggingMany, "without self.log"),
        (Backward, "backward"),
        (Keeping, "changes the attribute 'losses"),
        (Iterating, "dataloader_iter"),
        (NoRule, "layer.weight"),
        (Stepping, "one private gradient"),
        (SomeOfIt, "layer.bias"),
        (BatchNorm, "BatchNorm1d"),
    ],
)
def test_modules(module, words, ledger, tmp_path):
    refused(ledger, tmp_path, words, module=module())


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (ManualBackward, "manual_backward"),
        (TwoRules, "multiple optimizers"),
        (OtherScheduler, "wasn't returned from `configure_optimizers`"),
    ],
)
def test_modules_that_lightning_refuses_itself(module, words, ledger, tmp_path):
    with pytest.raises((MisconfigurationException, RuntimeError), match=words):
        fits.trainer(tmp_path, private={"data_ledger": ledger}).fit(module(), fits.loader())
    assert not ledger.spendings()


class Stream(IterableDataset):
    def __iter__(self):
        return iter(fits.records())


class OwnLoader(DataLoader):
    def __iter__(self):
        return super().__iter__()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda data: DataLoader(data, 8, sampler=WeightedRandomSampler(torch.ones(40), 40)), "Weighted"),
        (lambda data: DataLoader(data, 8, sampler=RandomSampler(data, replacement=True)), "RandomSampler"),
        (lambda data: DataLoader(data, 8, sampler=RandomSampler(data, num_samples=8)), "RandomSampler"),
        (lambda data: DataLoader(data, 8, sampler=SequentialSampler(range(8))), "SequentialSampler"),
        (lambda data: DataLoader(data, 8, sampler=[0] * 40), "got list"),
        (
            lambda data: DataLoader(
                data, batch_sampler=type("Own", (BatchSampler,), {})(SequentialSampler(data), 8, False)
            ),
            "got Own",
        ),
        (
            lambda data: DataLoader(
                data, batch_sampler=BatchSampler(WeightedRandomSampler(torch.ones(40), 40), 8, False)
            ),
            "Weighted",
        ),
        (lambda data: DataLoader(data, batch_size=None), "batch_size of the DataLoader"),
        (lambda data: DataLoader(Stream(), 8), "IterableDataset"),
        (lambda data: OwnLoader(data, 8), "OwnLoader"),
        (lambda data: DataLoader(data, 8, num_workers=1, worker_init_fn=print), "worker_init_fn"),
        (lambda data: [DataLoader(data, 8), DataLoader(data, 8)], "one training DataLoader"),
        (lambda data: {"a": DataLoader(data, 8)}, "not in a list or mapping"),
        (lambda data: data, "batch_size="),
        (lambda data: iter([1]), "__len__"),
    ],
)
def test_loaders(make, words, ledger, tmp_path):
    refused(ledger, tmp_path, words, data=make(fits.records()))


def test_validation_on_the_training_data(ledger, tmp_path):
    data = fits.records()
    refused(ledger, tmp_path, "apart from the training data", data=fits.loader(data), val=fits.loader(data))


def test_checkpoints_that_are_not_local(ledger, tmp_path):
    saver = callbacks.ModelCheckpoint(dirpath="memory://checkpoints")
    refused(ledger, tmp_path, "local folder", callbacks=[saver])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delta": 1e-3}, "epsilon and noise_multiplier"),
        ({"delta": 2.0, "epsilon": 1.0}, "delta"),
        ({"delta": 1e-3, "epsilon": 1.0, "batch_size": 0}, "batch_size"),
        ({"delta": 1e-3, "epsilon": 1.0, "engine": "magic"}, "engine"),
    ],
)
def test_options_at_construction(options, words):
    with pytest.raises(ValueError, match=words):
        PrivateTraining(**options)


def test_a_second_fit_with_the_same_budget(tmp_path):
    trainer = fits.trainer(tmp_path)
    trainer.fit(module := fits.Classifier(), fits.loader())
    spent = trainer.strategy.run.epsilon()
    with pytest.raises(RuntimeError, match="a new PrivateTraining for each"):
        trainer.fit(module, fits.loader())
    assert trainer.strategy.run.epsilon() == spent


def test_a_module_of_private_losses_does_not_train_without_the_strategy(tmp_path):
    """The mistake that trained a model of others without privacy, unnoticed."""
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, default_root_dir=tmp_path)
    module = fits.Classifier(torch.optim.Adam)
    with pytest.raises(RuntimeError, match="scalar"):
        trainer.fit(module, fits.loader())
    assert torch.equal(fits.weights(module), fits.weights(fits.Classifier()))


def test_a_rule_does_not_step_without_the_strategy(tmp_path):
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, default_root_dir=tmp_path)
    with pytest.raises(RuntimeError, match="fresh release"):
        trainer.fit(Mean(), fits.loader())
