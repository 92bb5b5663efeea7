"""Checkpoints of Lightning: they hold the ledger, and a training resumes through it only."""

import shutil
import subprocess
import sys
from functools import partial

import pytest
import torch

pytest.importorskip("lightning")

import lightning.pytorch as pl
from torch.optim import lr_scheduler

from adamas import rules
from adamas.integrations.lightning import PrivateTraining
from tests.support import lightning_fits as fits
from tests.support.killed_fits import saver

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Stop(Exception):
    pass


class Crash(pl.Callback):
    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == self.step:
            raise Stop


class Scheduled(fits.Classifier):
    def configure_optimizers(self):
        rule = super().configure_optimizers()
        return [rule], [{"scheduler": lr_scheduler.StepLR(rule, 2, gamma=0.8), "interval": "step"}]


def uninterrupted(module_class=fits.Classifier, **private):
    module = module_class()
    trainer = fits.trainer("unused", private=private)
    trainer.fit(module, fits.loader())
    return fits.weights(module), trainer.strategy.run.epsilon()


def crashed(folder, step, module_class=fits.Classifier, **private):
    trainer = fits.trainer(folder, private=private, callbacks=[saver(folder), Crash(step)])
    with pytest.raises(Stop):
        trainer.fit(module_class(), fits.loader(), fits.public())
    return trainer


@pytest.mark.parametrize("name", ["step=4", "step=8", "last"])
@pytest.mark.parametrize("module_class", [Scheduled, partial(fits.Classifier, rules.MacAdam)])
def test_a_training_that_stopped_resumes_bit_for_bit_within_an_epoch(name, module_class, tmp_path):
    crashed(tmp_path, 9, module_class)
    module = module_class()
    trainer = fits.trainer(tmp_path)
    trainer.fit(module, fits.loader(), fits.public(), ckpt_path=tmp_path / f"{name}.ckpt")
    weights, epsilon = uninterrupted(module_class)
    assert torch.equal(fits.weights(module), weights)
    assert trainer.strategy.run.epsilon() == epsilon
    assert trainer.global_step == trainer.strategy.run.steps_done == fits.STEPS
    assert trainer.current_epoch == fits.EPOCHS


def test_a_training_that_stopped_resumes_at_the_end_of_an_epoch(tmp_path):
    at_ends = pl.callbacks.ModelCheckpoint(dirpath=tmp_path, filename="{epoch}", save_top_k=-1)
    with pytest.raises(Stop):
        fits.trainer(tmp_path, callbacks=[at_ends, Crash(12)]).fit(fits.Classifier(), fits.loader())
    trainer = fits.trainer(tmp_path, callbacks=[at_ends])
    trainer.fit(module := fits.Classifier(), fits.loader(), ckpt_path=tmp_path / "epoch=1.ckpt")
    weights, epsilon = uninterrupted()
    assert torch.equal(fits.weights(module), weights)
    assert trainer.strategy.run.epsilon() == epsilon


def test_without_a_seed_the_steps_after_the_checkpoint_are_spent_twice(tmp_path):
    terms = {"seed": None, "noise_multiplier": None, "epsilon": 2.0}
    died = crashed(tmp_path, 7, **terms)
    trainer = fits.trainer(tmp_path, private=terms, max_epochs=fits.EPOCHS)
    trainer.fit(fits.Classifier(), fits.loader(), ckpt_path=tmp_path / "step=4.ckpt")
    run = trainer.strategy.run
    assert sum(count for _, count in run.ledger.entries) == run.steps_done + 3  # releases 5, 6 and 7 are lost
    assert died.strategy.run.epsilon() < run.epsilon() <= 2.0
    assert (
        run.steps_done == run.steps == trainer.global_step == fits.STEPS - 3
    )  # the budget pays for the rest


@pytest.mark.subprocess
def test_a_killed_training_resumes_with_no_less_epsilon_than_it_had(tmp_path):
    command = [sys.executable, "-m", "tests.support.killed_fits", str(tmp_path), "11"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    weights, epsilon = uninterrupted()
    for seed in (3, None):
        folder = tmp_path / str(seed)
        before = float((folder / "epsilon").read_text())
        module, trainer = fits.Classifier(), fits.trainer(folder, private={"seed": seed})
        seen = []
        trainer.callbacks.append(
            pl.callbacks.LambdaCallback(
                on_train_start=lambda t, m: seen.append(  # noqa: B023
                    t.strategy.run.epsilon()
                )
            )
        )
        trainer.fit(module, fits.loader(), fits.public(), ckpt_path=folder / "step=8.ckpt")
        assert seen[0] >= before
        if seed is None:
            assert trainer.strategy.run.epsilon() > epsilon  # three releases more
        else:
            assert trainer.strategy.run.epsilon() == epsilon
            assert torch.equal(fits.weights(module), weights)


def finished(folder, **options):
    keep = pl.callbacks.ModelCheckpoint(dirpath=folder, filename="{step}", save_top_k=-1, **options)
    trainer = fits.trainer(folder, callbacks=[keep], max_epochs=1)
    trainer.fit(fits.Classifier(), fits.loader())
    return folder / "step=5.ckpt"


def public_checkpoint(folder):
    class Public(fits.Classifier):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx).mean()

    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, default_root_dir=folder)
    trainer.fit(Public(torch.optim.Adam), fits.loader())
    trainer.save_checkpoint(folder / "public.ckpt")
    return folder / "public.ckpt"


@pytest.mark.parametrize("kind", ["without ledger", "weights only", "without folder", "without journal"])
def test_a_checkpoint_without_its_ledger_is_refused(kind, tmp_path):
    if kind == "without ledger":
        path, words = public_checkpoint(tmp_path), "without a private run"
    else:
        path = finished(tmp_path, save_weights_only=kind == "weights only")
        words = "with weights only"
    if kind == "without folder":
        shutil.rmtree(tmp_path / "adamas_runs")
        words = "holds the ledger"
    if kind == "without journal":
        for journal in (tmp_path / "adamas_runs").glob("*.journal"):
            journal.unlink()
        words = "journal"
    trainer = fits.trainer(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        trainer.fit(fits.Classifier(), fits.loader(), ckpt_path=path)
    with pytest.raises(RuntimeError, match=r"trainer\.fit first"):
        _ = trainer.strategy.run


@pytest.mark.parametrize(
    ("private", "options", "words"),
    [
        ({"noise_multiplier": 2.0}, {}, "noise_multiplier"),
        ({"seed": 4}, {}, "seed"),
        ({"clip_norm": 2.0}, {}, "clip_norm"),
        ({}, {"max_epochs": 4}, "steps"),
    ],
)
def test_a_checkpoint_of_other_terms_is_refused(private, options, words, tmp_path):
    path = finished(tmp_path)
    trainer = fits.trainer(tmp_path, private=private, **({"max_epochs": 1} | options))
    with pytest.raises(ValueError, match=words):
        trainer.fit(fits.Classifier(), fits.loader(), ckpt_path=path)


def test_a_private_checkpoint_does_not_go_on_without_privacy(tmp_path):
    path = finished(tmp_path)
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", logger=False, default_root_dir=tmp_path)
    with pytest.raises(KeyError):
        trainer.fit(fits.Classifier(), fits.loader(), ckpt_path=path)


def test_a_checkpoint_and_the_run_of_another_one_are_refused(tmp_path):
    crashed(tmp_path, 9)
    runs = tmp_path / "adamas_runs"
    for end in ("", ".journal"):
        shutil.copy(runs / f"step=8.ckpt.8.safetensors{end}", runs / f"step=4.ckpt.4.safetensors{end}")
    with pytest.raises(ValueError, match="do not belong together"):
        fits.trainer(tmp_path).fit(fits.Classifier(), fits.loader(), ckpt_path=tmp_path / "step=4.ckpt")


def test_weights_of_a_checkpoint_that_was_changed_do_not_count(tmp_path):
    crashed(tmp_path, 9)
    path = tmp_path / "step=8.ckpt"
    content = torch.load(path, weights_only=True)
    content["state_dict"]["layer.weight"] += 1
    torch.save(content, path)
    fits.trainer(tmp_path).fit(module := fits.Classifier(), fits.loader(), ckpt_path=path)
    assert torch.equal(fits.weights(module), uninterrupted()[0])


def names(folder):
    return sorted(file.name for file in (folder / "adamas_runs").iterdir())


def test_the_runs_of_deleted_and_replaced_checkpoints_are_deleted(tmp_path):
    best = pl.callbacks.ModelCheckpoint(
        dirpath=tmp_path, filename="{step}", monitor="step", mode="max", every_n_train_steps=2, save_last=True
    )
    fits.trainer(tmp_path, callbacks=[best]).fit(fits.Classifier(), fits.loader())
    assert names(tmp_path) == [
        f"{name}.ckpt.14.safetensors{end}"
        for name in ("last", "step=14")
        for end in ("", ".journal", ".siblings")
    ]


def test_a_crash_between_run_and_checkpoint_leaves_the_older_pair(tmp_path, monkeypatch):
    """The disk is full when `last.ckpt` is replaced: the older one knows all releases."""
    last = pl.callbacks.ModelCheckpoint(
        dirpath=tmp_path, filename="{step}", every_n_train_steps=3, save_top_k=0, save_last=True
    )
    trainer = fits.trainer(tmp_path, callbacks=[last])
    write = trainer.strategy.checkpoint_io.save_checkpoint

    def full(checkpoint, path, storage_options=None):
        if checkpoint["global_step"] == 9:
            raise OSError("No space left on device")
        write(checkpoint, path, storage_options)

    monkeypatch.setattr(trainer.strategy.checkpoint_io, "save_checkpoint", full)
    with pytest.raises(OSError, match="No space"):
        trainer.fit(fits.Classifier(), fits.loader())
    assert {"last.ckpt.6.safetensors", "last.ckpt.9.safetensors"} <= set(names(tmp_path))
    again = fits.trainer(tmp_path, callbacks=[last])
    again.fit(module := fits.Classifier(), fits.loader(), ckpt_path=tmp_path / "last.ckpt")
    weights, epsilon = uninterrupted()
    assert torch.equal(fits.weights(module), weights)
    assert again.strategy.run.epsilon() == epsilon
    assert names(tmp_path)[0] == "last.ckpt.15.safetensors"


class StopInside(pl.Callback):
    def on_before_optimizer_step(self, trainer, *args):
        if trainer.strategy.run.steps_done == 6:
            raise Stop


def test_an_exception_during_a_step_leaves_the_checkpoint_before_it(tmp_path):
    """Otherwise last.ckpt would be replaced by one that nothing can continue."""
    keep = pl.callbacks.ModelCheckpoint(
        tmp_path, every_n_train_steps=4, save_last=True, save_on_exception=True
    )
    with pytest.raises(RuntimeError, match=r"one during step 6.*the checkpoint before") as error:
        fits.trainer(tmp_path, callbacks=[keep, StopInside()]).fit(fits.Classifier(), fits.loader())
    assert isinstance(error.value.__context__, Stop)
    trainer = fits.trainer(tmp_path)
    trainer.fit(module := fits.Classifier(), fits.loader(), ckpt_path=tmp_path / "last.ckpt")
    weights, epsilon = uninterrupted()
    assert torch.equal(fits.weights(module), weights)
    assert trainer.strategy.run.epsilon() == epsilon


def test_a_checkpoint_loads_for_evaluation_and_inference_as_any_other(tmp_path):
    path = finished(tmp_path)
    (tmp_path / "alone").mkdir()
    alone = shutil.copy(path, tmp_path / "alone")
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, default_root_dir=tmp_path, enable_progress_bar=False
    )
    assert trainer.validate(fits.Classifier(), fits.public(), ckpt_path=alone, verbose=False)
    private = pl.Trainer(accelerator="cpu", logger=False, strategy=PrivateTraining(epsilon=1.0, delta=1e-3))
    assert private.validate(fits.Classifier(), fits.public(), ckpt_path=alone, verbose=False)
    module = fits.Classifier.load_from_checkpoint(alone)
    assert not torch.equal(fits.weights(module), fits.weights(fits.Classifier()))


def test_an_average_of_the_weights_resumes(tmp_path):
    def average():
        return pl.callbacks.EMAWeightAveraging(decay=0.5)

    fits.trainer(tmp_path, callbacks=[average()]).fit(whole := fits.Classifier(), fits.loader())
    with pytest.raises(Stop):
        fits.trainer(tmp_path, callbacks=[average(), saver(tmp_path), Crash(9)]).fit(
            fits.Classifier(), fits.loader()
        )
    fits.trainer(tmp_path, callbacks=[average()]).fit(
        module := fits.Classifier(), fits.loader(), ckpt_path=tmp_path / "step=8.ckpt"
    )
    assert torch.equal(fits.weights(module), fits.weights(whole))


def test_a_fit_that_was_refused_leaves_nothing_behind(tmp_path):
    path = finished(tmp_path)
    trainer = fits.trainer(tmp_path, max_epochs=2)
    with pytest.raises(ValueError, match="steps"):
        trainer.fit(fits.Classifier(), fits.loader(), ckpt_path=path)
    trainer = fits.trainer(tmp_path, private=fits.TERMS, max_epochs=1)
    with pytest.raises(ValueError, match=r"layer\.bias"):
        trainer.fit(Part(), fits.loader(), ckpt_path=path)
    trainer.fit(module := fits.Classifier(), fits.loader())
    fits.plain_run(alone := fits.Classifier(), steps=5)
    assert torch.equal(fits.weights(module), fits.weights(alone))


class Part(fits.Classifier):
    def configure_optimizers(self):
        return self.rule([self.layer.weight])
