"""`adamas check`: each row passes on a sound run, and fails on one that was sabotaged for it."""

import json
import math
import textwrap
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import adamas
import adamas.privatize
from adamas import rules
from adamas.accounting.ledger import Ledger
from adamas.check import CHECKS, FAIL, NOT_APPLICABLE, PASS, check
from adamas.check.base import Replay
from adamas.check.replay import Silent, joined, release_of, whitened_sums
from adamas.geometry import Geometry
from adamas.noise import GaussianNoise
from adamas.privatize import PrivateGradient
from adamas.run.loop import PrivateRun
from adamas.sampling import Draw, Poisson
from tests.support.command_line import call

N = 120
NAMES = [one.name for one in CHECKS]


def loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 6, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def plain():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def maker(make_model=plain, rule="adam", loss=loss, dataset=None, **changes):
    """A function that makes a fresh run, cheap to account for."""
    settings = {"batch_size": 20, "steps": 12, "noise_multiplier": 1.0, "delta": 1e-3, "accountant": "rdp"}

    def make_run():
        torch.manual_seed(0)
        model = make_model()
        optimizer = rules.RULES[rule](model.parameters(), lr=0.01)
        return adamas.make_private(model, optimizer, dataset or data(), loss, **(settings | changes))

    return make_run


def look(name, make_run, examples=6):
    (one,) = [one for one in CHECKS if one.name == name]
    return one.look(Replay(make_run, examples))


# --- sound runs -----------------------------------------------------------------------------------------


def test_a_sound_run_passes_and_every_row_is_there():
    rows = check(maker(seed=1))
    assert [row.name for row in rows] == NAMES
    verdicts = {row.name: row.verdict for row in rows}
    absent = {
        "dropout per example",
        "frozen parameters",
        "unused parameters",
        "tied parameters",
        "ranks' seeds",
    }
    assert {name for name, verdict in verdicts.items() if verdict == NOT_APPLICABLE} == absent
    assert set(verdicts.values()) == {PASS, NOT_APPLICABLE}
    assert all(row.seen and not row.remedy for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("rule", rules.RULES)
def test_the_sensitivity_is_1_in_every_rules_geometry_and_is_reached(rule):
    verdict, seen = look("sensitivity in the geometry", maker(rule=rule, seed=0))
    assert verdict == PASS
    assert 0.999 < float(seen.split()[-1]) < 1.0005


@pytest.mark.parametrize("rule", ["adaclip", "scale-then-privatize"])
def test_the_noise_is_as_stated_in_a_geometry(rule):
    assert look("noise variance as stated", maker(rule=rule, seed=0))[0] == PASS


@pytest.mark.parametrize(
    "sampling", [{"sampling": "shuffled"}, {"sampling": "truncated-poisson", "max_batch_size": 40}]
)
@pytest.mark.parametrize("name", ["sampling as stated", "empty batch"])
def test_other_samplers_pass(sampling, name):
    assert look(name, maker(seed=2, **sampling, accountant="pld"))[0] == PASS


def test_shuffled_epochs_are_recorded():
    verdict, seen = look("every release recorded", maker(seed=2, sampling="shuffled", batch_size=60))
    assert verdict == PASS
    assert "3 steps" in seen


@pytest.mark.slow
def test_a_budget_is_checked_for_all_steps():
    verdict, seen = look("every release recorded", maker(noise_multiplier=None, epsilon=4.0, seed=0))
    assert verdict == PASS
    assert "all 12 steps" in seen


class Texts(Dataset):
    """Whole numbers only, so that a NaN has to come by the loss."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return {"ids": torch.tensor([index % 7, index % 5, index % 3]), "label": torch.tensor(index % 2)}


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 8)
        self.decoder = nn.Linear(8, 8, bias=False)
        self.decoder.weight = self.embedding.weight  # tied
        self.head = nn.Linear(8, 2)
        self.spare = nn.Parameter(torch.zeros(3))  # unused
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)

    def forward(self, ids):
        return self.head(torch.tanh(self.decoder(self.embedding(ids).mean(1))) * self.frozen)


def text_loss(model, batch):
    return F.cross_entropy(model(batch["ids"]), batch["label"], reduction="none")


@pytest.fixture
def reader():
    return maker(Reader, loss=text_loss, dataset=Texts(), seed=3)


@pytest.mark.slow
def test_texts_with_tied_frozen_and_unused_parameters_pass(reader):
    rows = {row.name: row for row in check(reader)}
    assert {name for name, row in rows.items() if row.verdict != PASS} == {
        "dropout per example",
        "large example",
        "ranks' seeds",
    }
    assert "'embedding.weight' = 'decoder.weight'" in rows["tied parameters"].seen
    assert "'spare'" in rows["unused parameters"].seen
    assert "losses" in rows["NaN example"].seen


def dropped():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 2))


@pytest.mark.slow
def test_dropout_passes():
    rows = {row.name: row for row in check(maker(dropped, seed=0))}
    assert rows["dropout per example"].verdict == PASS
    assert all(row.verdict != FAIL for row in rows.values()), rows


# --- each row fails -------------------------------------------------------------------------------------


def test_clipping_that_is_off_is_seen(monkeypatch):
    monkeypatch.setattr(adamas.privatize, "clip_weights", torch.ones_like)
    verdict, seen = look("sensitivity in the geometry", maker())
    assert verdict == FAIL
    assert float(seen.split()[-1]) > 10


@pytest.mark.slow
def test_a_geometry_that_is_wrong_after_some_steps_is_seen(monkeypatch):
    original = Geometry.scaled

    def wider(self, factor):  # a hundred times the noise's scale, once the rule has a state
        adapted = any(isinstance(s, torch.Tensor) for s in self.scale.values())
        return original(self, factor * 100 if adapted and "privatize" in called_by() else factor)

    def called_by():
        import inspect

        return {frame.function for frame in inspect.stack()}

    monkeypatch.setattr(Geometry, "scaled", wider)
    assert look("sensitivity in the geometry", maker(rule="scale-then-privatize"))[0] == FAIL


@pytest.mark.parametrize("factor", [0.0, 1 / 20, 1 / math.sqrt(2), math.sqrt(2), 20.0])
def test_noise_of_another_variance_is_seen(monkeypatch, factor):
    original = GaussianNoise.add_normal_
    monkeypatch.setattr(
        GaussianNoise, "add_normal_", lambda self, out, std, *rest: original(self, out, std * factor, *rest)
    )
    assert look("noise variance as stated", maker())[0] == FAIL


def test_noise_that_shrinks_with_the_batch_is_seen(monkeypatch):
    original = adamas.run.loop.privatize

    def shrinking(engines, geometry, **settings):
        held = list(engines)
        return original(held, geometry, **(settings | {"noise_multiplier": 0.5 if held else 1.0}))

    monkeypatch.setattr(adamas.run.loop, "privatize", shrinking)
    assert look("noise variance as stated", maker())[0] == FAIL


def test_noise_that_is_repeated_is_seen(monkeypatch):
    original = GaussianNoise.add_normal_

    def repeated(self, out, *rest):
        self.draws = 0
        return original(self, out, *rest)

    monkeypatch.setattr(GaussianNoise, "add_normal_", repeated)
    assert look("noise variance as stated", maker(seed=0))[0] == FAIL


def test_noise_that_coordinates_share_is_seen(monkeypatch):
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


def test_releases_that_are_not_recorded_are_seen(monkeypatch):
    monkeypatch.setattr(Ledger, "record_release", lambda self, sampler, step, z: None)
    assert look("every release recorded", maker())[0] == FAIL


def test_a_price_that_is_too_low_is_seen(monkeypatch):
    original = Ledger.record_release
    monkeypatch.setattr(
        Ledger, "record_release", lambda self, sampler, step, z: original(self, sampler, step, 1.1 * z)
    )
    verdict, seen = look("every release recorded", maker())
    assert verdict == FAIL
    assert "composed directly" in seen


@pytest.mark.slow
def test_a_budget_that_does_not_cover_the_run_is_seen():
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
        lambda self, step: Draw(np.arange(step % 2, N, 2)),  # half of them
        lambda self, step: Draw(np.array([1, 1, 2])),
    ],
)
def test_a_sampler_that_lies_is_seen(monkeypatch, indices):
    monkeypatch.setattr(Poisson, "indices", indices)
    assert look("sampling as stated", maker())[0] == FAIL


class Mixing(nn.Module):
    """Mixes examples in batches that are larger than those on which a run tries the model."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 2)

    def forward(self, x):
        return self.linear(x - x.mean(0) if len(x) > 3 else x)


@pytest.mark.slow
def test_a_layer_that_mixes_examples_is_seen():
    assert look("examples mixed by a layer", maker(Mixing, engine="vmap"))[0] == FAIL
    assert look("sensitivity in the geometry", maker(Mixing, engine="loop"))[0] == PASS  # each alone


def test_a_model_that_is_refused_is_one_row():
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
def test_an_empty_batch_that_is_skipped_is_seen(monkeypatch, skipped):
    monkeypatch.setattr(PrivateRun, "privatize", skipped)
    assert look("empty batch", maker())[0] == FAIL


def keeping_nan(norms):
    return norms.clamp(min=1.0).reciprocal()


def test_a_nan_that_reaches_the_sum_is_seen(monkeypatch, reader):
    monkeypatch.setattr(adamas.privatize, "clip_weights", keeping_nan)
    assert look("NaN example", maker())[0] == FAIL
    assert look("NaN example", reader)[0] == FAIL


def test_a_forward_with_randomness_of_its_own_is_seen():
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
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 2)

    def forward(self, x):
        mask = F.dropout(torch.ones(1, 6), 0.5) if len(x) > 3 else torch.ones(1, 6)
        return self.linear(x * mask)


class OthersMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 2)

    def forward(self, x):
        if len(x) > 3:
            torch.rand(int((x > 0).sum()))  # the place in the stream depends on the whole batch
            x = F.dropout(x, 0.5)
        return self.linear(x)


@pytest.mark.parametrize("model", [OneMask, OthersMask])
def test_masks_that_are_shared_or_depend_on_others_are_seen(model):
    assert look("dropout per example", maker(model, engine="loop", seed=0))[0] == FAIL


def doubled_norms(monkeypatch):
    from adamas.engines import Bookkeeping

    original = Bookkeeping.norms
    monkeypatch.setattr(Bookkeeping, "norms", lambda self, geometry: original(self, geometry) / 2)


def test_an_engine_that_differs_from_autograd_is_seen(monkeypatch, reader):
    doubled_norms(monkeypatch)
    assert look("gradients as autograd's", maker(engine="bookkeeping"))[0] == FAIL
    assert look("tied parameters", reader)[0] == FAIL
    assert look("sensitivity in the geometry", maker(engine="bookkeeping"))[0] == FAIL


def test_a_frozen_parameter_that_moves_is_seen(reader):
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


def test_an_unused_parameter_without_noise_is_seen(monkeypatch, reader):
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


def test_a_replay_that_stops_is_no_pass(monkeypatch):
    def broken(self, batch, *, absolute=False):
        raise RuntimeError("no batch today")

    monkeypatch.setattr(PrivateRun, "privatize", broken)
    rows = {row.name: row for row in check(maker())}
    assert rows["empty batch"].verdict == FAIL
    assert "no batch today" in rows["empty batch"].seen


def test_a_run_that_is_not_fresh_is_refused():
    run = maker()()
    next(iter(run))
    with pytest.raises(ValueError, match="fresh run"):
        check(lambda: run)
    with pytest.raises(TypeError, match="make_private"):
        check(lambda: None)


# --- the command ----------------------------------------------------------------------------------------

MODULE = """
    import torch, adamas, helper_of_the_check
    from torch.nn import functional as F

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    def make_run(noise_multiplier=1.0):
        torch.manual_seed(0)
        model = torch.nn.Linear(6, 20)
        data = torch.utils.data.TensorDataset(torch.randn(200, 6), torch.ones(200).long())
        return adamas.make_private(
            model, adamas.rules.AdamBC(model.parameters()), data, loss, batch_size=20, steps=20,
            noise_multiplier=noise_multiplier, delta=1e-5, seed=0, accountant="rdp")

    def noiseless():
        return make_run(0.0)

    nothing = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    import sys

    (tmp_path / "module_of_the_check.py").write_text(textwrap.dedent(MODULE))
    (tmp_path / "helper_of_the_check.py").write_text("")
    (tmp_path / "broken_of_the_check.py").write_text("import a_module_that_is_not_there")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.endswith("_of_the_check")]:
        del sys.modules[name]


@pytest.mark.slow
def test_the_command_prints_a_table_and_json(capsys, folder):
    code, printed, _ = call(capsys, "check", "module_of_the_check:make_run", "--examples", "4")
    assert code == 0
    for name in NAMES:
        assert name in printed
    code, printed, _ = call(capsys, "check", "module_of_the_check:noiseless", "--json", "--examples", "3")
    assert code == 1
    answer = json.loads(printed)
    assert answer["verdict"] == FAIL
    assert [row["name"] for row in answer["rows"] if row["verdict"] == FAIL] == ["noise variance as stated"]


@pytest.mark.parametrize("command", ["check", "audit"])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("module_of_the_check", "MODULE:FUNCTION"),
        ("module_of_the_check.py:make_run", "MODULE:FUNCTION"),
        ("not_there_of_the_check:make_run", "'not_there_of_the_check'"),
        ("broken_of_the_check:make_run", "a_module_that_is_not_there"),
        ("module_of_the_check:make", "'make'"),
        ("module_of_the_check:nothing", "'nothing'"),
        ("helper_of_the_check:__doc__", "'__doc__'"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_one_line(capsys, folder, command, function, message):
    code, printed, error = call(capsys, command, function)
    assert code == 2
    assert printed == ""
    assert error.count("\n") == 1
    assert message in error


@pytest.mark.slow
def test_the_command_shows_a_bar_if_asked(capsys, folder):
    code, _, error = call(capsys, "check", "module_of_the_check:make_run", "--progress", "--examples", "2")
    assert code == 0
    assert "checks" in error


def test_a_replay_is_shared_out_to_ranks_and_leaves_the_noise_where_it_is():
    run = maker(seed=1)()
    noise, run.noise = run.noise, Silent(run.noise.seed)

    def released():
        return joined(whitened_sums(run, release_of(run, range(7), 0), run.geometry()))

    whole, run.loader.world_size = released(), 2
    shares = []
    for run.loader.rank in range(2):
        shares.append(released())
        run.noise.skip()
    assert torch.allclose(shares[0] + shares[1], whole)
    assert not torch.allclose(shares[0], whole)
    assert run.noise.draws == noise.draws == 0


@pytest.mark.parametrize(("streams", "verdict"), [("same", PASS), ("different", FAIL)])
def test_ranks_must_share_one_stream(streams, verdict):
    """The other rank says what it knows of its stream; a real pair of processes is in test_distributed.py."""
    told = []

    class Ranks:
        world_size = 2

        def roll_call(self, doing, facts):
            told.append(facts)
            if streams == "different":
                raise adamas.DistributedError("Expected the same random streams on all ranks.")

    def make_run():
        run = maker(seed=1)()
        run.ranks = Ranks()
        return run

    assert look("ranks' seeds", make_run)[0] == verdict
    assert len(told[0]["random streams"]) == 8
