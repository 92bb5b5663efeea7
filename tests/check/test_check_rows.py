"""`adamas check`: each row fails on a run that was sabotaged for it."""

import inspect
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import adamas
import adamas.privatize
from adamas.accounting.ledger import Ledger
from adamas.check import FAIL, PASS, check
from adamas.engines import Bookkeeping
from adamas.geometry import Geometry
from adamas.noise import GaussianNoise
from adamas.privatize import PrivateGradient
from adamas.run.loop import PrivateRun
from adamas.sampling import Draw, Poisson
from tests.support.checked_runs import N, Reader, Texts, look, maker, text_loss


def test_disabled_clipping_is_detected(monkeypatch):
    monkeypatch.setattr(adamas.privatize, "clip_weights", torch.ones_like)
    verdict, seen = look("sensitivity in the geometry", maker())
    assert verdict == FAIL
    assert float(seen.split()[-1]) > 10


@pytest.mark.slow
def test_a_geometry_that_is_wrong_after_some_steps_is_detected(monkeypatch):
    original = Geometry.scaled

    def wider(self, factor):  # 100 times the scale of the noise, once the rule has a state
        adapted = any(isinstance(s, torch.Tensor) for s in self.scale.values())
        return original(self, factor * 100 if adapted and "privatize" in called_by() else factor)

    def called_by():

        return {frame.function for frame in inspect.stack()}

    monkeypatch.setattr(Geometry, "scaled", wider)
    assert look("sensitivity in the geometry", maker(rule="scale-then-privatize"))[0] == FAIL


@pytest.mark.parametrize("factor", [0.0, 1 / 20, 1 / math.sqrt(2), math.sqrt(2), 20.0])
def test_noise_of_another_variance_is_detected(monkeypatch, factor):
    original = GaussianNoise.add_normal_
    monkeypatch.setattr(
        GaussianNoise, "add_normal_", lambda self, out, std, *rest: original(self, out, std * factor, *rest)
    )
    assert look("noise variance as stated", maker())[0] == FAIL


def test_noise_that_shrinks_with_the_batch_is_detected(monkeypatch):
    original = adamas.run.loop.privatize

    def shrinking(engines, geometry, **settings):
        held = list(engines)
        return original(held, geometry, **(settings | {"noise_multiplier": 0.5 if held else 1.0}))

    monkeypatch.setattr(adamas.run.loop, "privatize", shrinking)
    assert look("noise variance as stated", maker())[0] == FAIL


def test_repeated_noise_is_detected(monkeypatch):
    original = GaussianNoise.add_normal_

    def repeated(self, out, *rest):
        self.draws = 0
        return original(self, out, *rest)

    monkeypatch.setattr(GaussianNoise, "add_normal_", repeated)
    assert look("noise variance as stated", maker(seed=0))[0] == FAIL


def test_noise_that_coordinates_share_is_detected(monkeypatch):
    original = GaussianNoise.add_normal_

    def shared(self, out, *rest):
        return out.add_(original(self, torch.zeros(1), *rest))

    monkeypatch.setattr(GaussianNoise, "add_normal_", shared)
    assert look("noise variance as stated", maker(seed=0))[0] == FAIL


@pytest.mark.slow
def test_a_run_without_noise_does_not_pass():
    rows = {row.name: row for row in check(maker(noise_multiplier=0.0))}
    assert [name for name, row in rows.items() if row.verdict == FAIL] == ["noise variance as stated"]
    assert "noise_multiplier" in rows["noise variance as stated"].remedy


def test_releases_that_are_not_recorded_are_detected(monkeypatch):
    monkeypatch.setattr(Ledger, "record_release", lambda self, sampler, step, z: None)
    assert look("every release recorded", maker())[0] == FAIL


def test_a_recorded_cost_that_is_too_low_is_detected(monkeypatch):
    original = Ledger.record_release
    monkeypatch.setattr(
        Ledger, "record_release", lambda self, sampler, step, z: original(self, sampler, step, 1.1 * z)
    )
    verdict, seen = look("every release recorded", maker())
    assert verdict == FAIL
    assert "composed directly" in seen


@pytest.mark.slow
def test_a_budget_that_does_not_cover_the_run_is_detected():
    def make_run():
        run = maker(noise_multiplier=None, epsilon=4.0)()
        plan = run._spending.plan
        run._spending._plan = replace(plan, noise_multiplier=0.9 * plan.noise_multiplier)
        return run

    assert look("every release recorded", make_run)[0] == FAIL


@pytest.mark.parametrize(
    "indices",
    [
        lambda self, step: Draw(np.arange(self.batch_size)),  # always the same
        lambda self, step: Draw(np.arange(step % 2, N, 2)),  # every other example
        lambda self, step: Draw(np.array([1, 1, 2])),  # one example twice
    ],
)
def test_a_sampler_that_does_not_draw_as_stated_is_detected(monkeypatch, indices):
    monkeypatch.setattr(Poisson, "indices", indices)
    assert look("sampling as stated", maker())[0] == FAIL


class Mixing(nn.Module):
    """Mixes examples, but only in batches larger than those that `make_private` tries."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 2)

    def forward(self, x):
        return self.linear(x - x.mean(0) if len(x) > 3 else x)


@pytest.mark.slow
def test_a_layer_that_mixes_examples_is_detected():
    assert look("examples mixed by a layer", maker(Mixing, engine="vmap"))[0] == FAIL
    # The engine loop takes each example alone.
    assert look("sensitivity in the geometry", maker(Mixing, engine="loop"))[0] == PASS


def test_a_refused_model_gives_one_failing_row():
    (row,) = check(maker(lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))))
    assert row.verdict == FAIL
    assert "BatchNorm1d" in row.seen


def without_recording(self, batch, *, absolute=False):
    zeros = {p: torch.zeros_like(p) for p in self.model.parameters()}
    return PrivateGradient(zeros, dict.fromkeys(zeros, 1.0))


def recording(self, batch, *, absolute=False):
    self._spending.charge(batch.step, [self.noise_multiplier])
    return without_recording(self, batch)


@pytest.mark.parametrize("skipped", [without_recording, recording])
def test_a_skipped_empty_batch_is_detected(monkeypatch, skipped):
    monkeypatch.setattr(PrivateRun, "privatize", skipped)
    assert look("empty batch", maker())[0] == FAIL


def keeping_nan(norms):
    return norms.clamp(min=1.0).reciprocal()


def test_a_nan_that_reaches_the_sum_is_detected(monkeypatch, reader):
    monkeypatch.setattr(adamas.privatize, "clip_weights", keeping_nan)
    assert look("NaN example", maker())[0] == FAIL
    assert look("NaN example", reader)[0] == FAIL


def test_a_forward_with_its_own_random_generator_is_detected():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.generator = nn.Linear(6, 2), np.random.default_rng(0)

        def forward(self, x):
            x = self.linear(x)
            return x * float(self.generator.uniform(0.5, 1.5)) if len(x) > 3 else x

    assert look("deterministic forward", maker(Own, engine="loop"))[0] == FAIL
    assert look("deterministic forward", maker())[0] == PASS


class OneMask(nn.Module):
    """Uses one mask for all examples of a batch."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 2)

    def forward(self, x):
        mask = F.dropout(torch.ones(1, 6), 0.5) if len(x) > 3 else torch.ones(1, 6)
        return self.linear(x * mask)


class OthersMask(nn.Module):
    """Draws masks that depend on the other examples of the batch."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 2)

    def forward(self, x):
        if len(x) > 3:
            torch.rand(int((x > 0).sum()))  # the position in the stream depends on the whole batch
            x = F.dropout(x, 0.5)
        return self.linear(x)


@pytest.mark.parametrize("model", [OneMask, OthersMask])
def test_masks_that_are_shared_or_depend_on_others_are_detected(model):
    assert look("dropout per example", maker(model, engine="loop", seed=0))[0] == FAIL


def doubled_norms(monkeypatch):

    original = Bookkeeping.norms
    monkeypatch.setattr(Bookkeeping, "norms", lambda self, geometry: original(self, geometry) / 2)


def test_an_engine_that_differs_from_autograd_is_detected(monkeypatch, reader):
    doubled_norms(monkeypatch)
    assert look("gradients as autograd's", maker(engine="bookkeeping"))[0] == FAIL
    assert look("tied parameters", reader)[0] == FAIL
    assert look("sensitivity in the geometry", maker(engine="bookkeeping"))[0] == FAIL


def test_a_frozen_parameter_that_moves_is_detected(reader):
    def moved_by_the_rule():
        run = reader()
        original = run.rule.step

        def step():
            run.model.frozen.data.mul_(1.01)
            original()

        run.rule.step = step
        return run

    def moving(model, batch):
        if len(batch["ids"]) > 3:
            model.frozen.data.mul_(1.01)
        return text_loss(model, batch)

    verdict, seen = look("frozen parameters", moved_by_the_rule)
    assert verdict == FAIL
    assert "'frozen'" in seen
    verdict, seen = look("state between batches", maker(Reader, loss=moving, dataset=Texts(), engine="loop"))
    assert verdict == FAIL
    assert "'frozen'" in seen


def test_an_unused_parameter_without_noise_is_detected(monkeypatch, reader):
    original = adamas.run.loop.privatize

    def sparing(*arguments, **settings):
        release = original(*arguments, **settings)
        for mean in release.mean.values():
            if mean.shape == (3,):
                mean.zero_()
        return release

    monkeypatch.setattr(adamas.run.loop, "privatize", sparing)
    verdict, seen = look("unused parameters", reader)
    assert verdict == FAIL
    assert "'spare'" in seen


def test_a_replay_that_raises_does_not_pass(monkeypatch):
    def broken(self, batch, *, absolute=False):
        raise RuntimeError("no batch today")

    monkeypatch.setattr(PrivateRun, "privatize", broken)
    rows = {row.name: row for row in check(maker())}
    assert rows["empty batch"].verdict == FAIL
    assert "no batch today" in rows["empty batch"].seen
