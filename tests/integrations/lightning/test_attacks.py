"""Attacks through Lightning's door: modules and callbacks that mix examples, or move private values out."""

import pytest
import torch

pytest.importorskip("lightning")

import lightning.pytorch as pl
from lightning.pytorch.loggers import CSVLogger
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import adamas
from tests.support import lightning_fits as fits

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CLIP = 0.1
LIMIT = 1 + 1e-3  # the noise is added in float32


class Plain(fits.Classifier):
    """Keeps examples apart."""


class Sorted(fits.Classifier):
    """Weighs the losses by their rank in the batch."""

    def training_step(self, batch, batch_idx):
        losses = super().training_step(batch, batch_idx)
        return losses.sort().values * torch.arange(len(losses))


class Centred(fits.Classifier):
    """Subtracts the mean of the logits from 8 examples on, where the trial with three sees nothing."""

    def training_step(self, batch, batch_idx):
        logits = self.layer(batch[0])
        if len(batch[0]) >= 8:
            logits = logits - 5 * logits.mean(0)
        return F.cross_entropy(logits, batch[1], reduction="none")


class Late(fits.Classifier):
    """Mixes after the first batch of an epoch."""

    def training_step(self, batch, batch_idx):
        losses = super().training_step(batch, batch_idx)
        return losses if batch_idx == 0 else losses * losses.sum()


class Pairs(fits.Classifier):
    """Mixes each example with its neighbour in the batch, as mixup does."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.layer(0.5 * (x + x.roll(1, 0))), y, reduction="none")


def influence(module, tmp_path, step):
    """Returns how far one record moves the sum at a step, in clip norms: same seed, with and without it.

    The record without influence is one whose loss is NaN: it counts as absent. The rate is 1.
    """
    gradients = []
    for value in (50.0, torch.nan):
        x, y = (one.clone() for one in fits.records()[:])
        x[7] = value
        seen = fits.Watcher()
        trainer = fits.trainer(
            tmp_path,
            private={"batch_size": fits.N, "noise_multiplier": 0.02, "clip_norm": CLIP, "seed": 5},
            callbacks=[seen],
            limit_train_batches=1,
            max_epochs=step,
        )
        one = module()
        one.rule = lambda parameters, lr: torch.optim.SGD(parameters, lr=0.0)  # both runs stay where they are
        trainer.fit(one, TensorDataset(x, y))
        gradients.append(seen.gradients[step - 1])
    return float((gradients[0] - gradients[1]).norm()) * fits.N / CLIP


@pytest.mark.parametrize("step", [1, 3])
def test_one_record_has_influence_of_at_most_1(step, tmp_path):
    assert 0.99 < influence(Plain, tmp_path, step) <= LIMIT


@pytest.mark.parametrize("module", [Sorted, Centred, Pairs])
def test_a_training_step_that_mixes_is_refused_or_computed_apart(module, tmp_path):
    try:
        moved = influence(module, tmp_path, 1)
    except (adamas.UnsupportedError, ValueError):
        return
    assert moved <= LIMIT


def test_a_training_step_that_mixes_later_is_refused_then(tmp_path):
    trainer = fits.trainer(tmp_path)
    with pytest.raises(adamas.UnsupportedError):
        trainer.fit(Late(), fits.loader())
    assert trainer.strategy.run.steps_done == 1


class LogsLater(fits.Classifier):
    def training_step(self, batch, batch_idx):
        losses = super().training_step(batch, batch_idx)
        if batch_idx == 2:
            self.log("train_loss", losses.mean(), batch_size=1)
        return losses


class LogsInAHook(fits.Classifier):
    """Keeps a loss for a hook that may log."""

    def training_step(self, batch, batch_idx):
        losses = super().training_step(batch, batch_idx)
        if batch_idx == 2:
            self.kept = losses.mean().detach()
        return losses

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if batch_idx == 2:
            self.log("train_loss", self.kept, batch_size=1)


class CountsInAHook(fits.Classifier):
    """Reads the size of a batch in a hook."""

    def on_train_batch_start(self, batch, batch_idx):
        self.log("n", float(len(batch)), batch_size=1)


@pytest.mark.parametrize("module", [LogsLater, LogsInAHook, CountsInAHook])
def test_no_private_value_reaches_a_logger(module, tmp_path):
    trainer = fits.trainer(tmp_path, logger=CSVLogger(tmp_path))
    with pytest.raises((adamas.UnsupportedError, TypeError)):
        trainer.fit(module(), fits.loader())
    assert not {"train_loss", "n"} & {*trainer.callback_metrics, *trainer.logged_metrics}
    assert all("train_loss" not in file.read_text() for file in tmp_path.rglob("metrics.csv"))


class BackwardInAHook(pl.Callback):
    """Adds gradients of the whole data, without noise."""

    def __init__(self, when):
        self.when = when

    def on_after_backward(self, trainer, module):
        if self.when == "on_after_backward":
            self.add(module)

    def on_before_optimizer_step(self, trainer, module, optimizer):
        if self.when == "on_before_optimizer_step":
            self.add(module)

    def add(self, module):
        x, y = fits.records()[:]
        F.cross_entropy(module.layer(x), y).backward()


class Exchanged(pl.Callback):
    def on_before_optimizer_step(self, trainer, module, optimizer):
        for p in module.parameters():
            p.grad = torch.ones_like(p)


class SkipsBackward(pl.Callback):
    def on_train_epoch_start(self, trainer, module):
        trainer.fit_loop._skip_backward = True


class Accumulates(pl.Callback):
    def on_train_epoch_start(self, trainer, module):
        trainer.accumulate_grad_batches = 2


class TurnsManual(pl.Callback):
    def on_train_epoch_start(self, trainer, module):
        module.automatic_optimization = False


class Clips(pl.Callback):
    def on_train_epoch_start(self, trainer, module):
        trainer.gradient_clip_val = 1e-4


class MovesFrozen(pl.Callback):
    def on_before_optimizer_step(self, trainer, module, optimizer):
        module.frozen.data.add_(1)


class MovesNothing(pl.Callback):
    def on_before_optimizer_step(self, trainer, module, optimizer):
        optimizer.step = lambda *args: None


class ReplacesOptimizer(pl.Callback):
    def on_train_epoch_start(self, trainer, module):
        trainer.strategy.optimizers = [torch.optim.Adam(module.parameters())]


class WithFrozen(fits.Classifier):
    def __init__(self, rule=torch.optim.SGD):
        super().__init__(rule)
        self.frozen = torch.nn.Parameter(torch.zeros(2), requires_grad=False)


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (BackwardInAHook("on_after_backward"), "not those of the release"),
        (BackwardInAHook("on_before_optimizer_step"), "not those of the release"),
        (Exchanged(), "not those of the release"),
        (SkipsBackward(), "one private gradient"),
        (Accumulates(), "accumulate_grad_batches"),
        (TurnsManual(), "automatic_optimization"),
        (Clips(), "not those of the release"),
        (MovesFrozen(), "changed 'frozen'"),
        (MovesNothing(), "moved 0 of 2"),
        (ReplacesOptimizer(), "optimizer of configure_optimizers, got another Adam"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_callback_that_changes_the_step_is_an_error(attack, words, tmp_path):
    """Torch's SGD steps on any gradient, so that nothing but the strategy can notice."""
    module = WithFrozen()
    before = module.layer.weight.detach().clone()
    with pytest.raises((RuntimeError, adamas.UnsupportedError), match=words):
        fits.trainer(tmp_path, callbacks=[attack]).fit(module, fits.loader())
    if not isinstance(attack, MovesFrozen):
        assert torch.equal(module.layer.weight, before)


def test_a_learning_rate_of_0_may_move_nothing_at_first(tmp_path):
    module = WithFrozen(lambda parameters, lr: torch.optim.SGD(parameters, lr=0.0))
    fits.trainer(tmp_path).fit(module, fits.loader())
    assert torch.equal(fits.weights(module), fits.weights(WithFrozen()))


def test_weights_that_do_not_move_after_a_warm_up_are_an_error(tmp_path):
    class WarmsUp(WithFrozen):
        def configure_optimizers(self):
            rule = super().configure_optimizers()
            later = torch.optim.lr_scheduler.LambdaLR(rule, lambda step: float(step > 1))
            return [rule], [{"scheduler": later, "interval": "step"}]

    trainer = fits.trainer(tmp_path, callbacks=[MovesNothing()])
    with pytest.raises(RuntimeError, match="moved 0 of 2"):
        trainer.fit(WarmsUp(), fits.loader())
    assert trainer.strategy.run.steps_done == 3


def test_a_user_that_skips_an_epoch_spends_less(tmp_path):
    class Skips(fits.Classifier):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if self.trainer.current_epoch == 1 else None

    trainer = fits.trainer(tmp_path)
    trainer.fit(Skips(), fits.loader())
    assert trainer.strategy.run.steps_done == trainer.global_step == fits.STEPS - fits.N // fits.BATCH


def test_a_budget_for_fewer_steps_ends_the_training(tmp_path):
    trainer = fits.trainer(tmp_path, private={"max_epsilon": 3.0})
    trainer.fit(fits.Classifier(), fits.loader(), fits.public())
    assert 0 < trainer.global_step == trainer.strategy.run.steps_done < fits.STEPS
    assert 2.5 < trainer.strategy.run.epsilon() <= 3.0


def test_a_trainer_that_must_go_on_does_not_spend_more(tmp_path):
    trainer = fits.trainer(tmp_path, private={"max_epsilon": 3.0}, min_epochs=fits.EPOCHS)
    with pytest.raises(adamas.BudgetError, match="Lower min_epochs"):
        trainer.fit(fits.Classifier(), fits.loader())
    assert trainer.strategy.run.epsilon() <= 3.0


def test_the_ledger_of_the_data_gets_back_what_early_stopping_saves(tmp_path):
    ledger = adamas.DataLedger.create(tmp_path / "data.ledger", epsilon=10.0, delta=1e-3, accountant="rdp")
    stop = pl.callbacks.EarlyStopping("epsilon", mode="min", patience=0, check_on_train_epoch_end=True)
    trainer = fits.trainer(tmp_path, private={"data_ledger": ledger}, callbacks=[stop])
    trainer.fit(fits.Classifier(), fits.loader())
    assert trainer.strategy.run.steps_done < fits.STEPS
    assert ledger.epsilon() == pytest.approx(trainer.strategy.run.epsilon())


class StopsTheRun(pl.Callback):
    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == 4:
            trainer.strategy.run.stop()


def test_a_callback_that_stops_the_run_and_not_the_trainer_is_told_how(tmp_path):
    trainer = fits.trainer(tmp_path, callbacks=[StopsTheRun()])
    with pytest.raises(adamas.BudgetError, match=r"no step after 4.*set trainer\.should_stop"):
        trainer.fit(fits.Classifier(), fits.loader())
    assert trainer.strategy.run.steps_done == 4


class BackwardLater(fits.Classifier):
    def training_step(self, batch, batch_idx):
        if batch_idx == 2:
            F.cross_entropy(self.layer(batch[0]), batch[1]).backward()
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("engine", ["bookkeeping", "vmap", "loop"])
def test_a_backward_in_a_later_training_step_changes_nothing(engine, tmp_path):
    trainer = fits.trainer(tmp_path, private={"engine": engine})
    try:
        trainer.fit(module := BackwardLater(), fits.loader())
    except adamas.UnsupportedError:
        assert trainer.strategy.run.steps_done == 2
        return
    fits.plain_run(alone := fits.Classifier(), engine=engine)
    assert torch.equal(fits.weights(module), fits.weights(alone))
