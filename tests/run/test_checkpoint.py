"""Checkpoints: a run that is saved and resumed is bit-equal to one that never stopped."""

import dp_accounting
import pytest
import torch
from torch import nn

import adamas
from adamas import rules
from adamas.engines import ENGINES
from adamas.run import checkpoint
from tests.support.finished_runs import make_finished
from tests.support.journals import journaled
from tests.support.small_runs import finish, make_model, make_run
from tests.support.stopped_runs import parameters, stopped


@pytest.mark.slow
@pytest.mark.parametrize("name", rules.RULES)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_from_a_file_is_bit_equal(name, engine, tmp_path):
    def fresh():
        model = make_model()
        rule = rules.RULES[name](model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(rule, T_max=6)
        return make_run(model, rule, scheduler=scheduler, ema=0.9, engine=engine, micro_batch_size=5)

    whole = fresh()
    expected = finish(whole)
    stopped(fresh_run := fresh(), 3).save(tmp_path / "run.safetensors")
    resumed = adamas.load(tmp_path / "run.safetensors", fresh())
    assert resumed.steps_done == 3
    assert torch.equal(parameters(resumed), parameters(fresh_run))
    assert torch.equal(finish(resumed), expected)
    assert resumed.ledger.entries == whole.ledger.entries
    assert resumed.epsilon() == whole.epsilon()
    for p, q in zip(resumed.ema_model.parameters(), whole.ema_model.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize("sampling", ["poisson", "truncated-poisson", "shuffled"])
def test_a_run_resumes_from_any_step(after, sampling, tmp_path):
    def fresh():
        return make_run(sampling=sampling, max_batch_size=20 if sampling == "truncated-poisson" else None)

    run = fresh()
    if after:
        stopped(run, after)
    run.save(tmp_path / "run.safetensors")
    assert torch.equal(finish(adamas.load(tmp_path / "run.safetensors", fresh())), finish(fresh()))


def test_tied_weights_and_double_precision_survive(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(5, 5, bias=False).double()
            self.second = self.first

        def forward(self, x):
            return self.second(torch.tanh(self.first(x.double())))[:, :2]

    def fresh():
        torch.manual_seed(0)
        return make_run(Tied())

    stopped(fresh(), 2).save(tmp_path / "run.safetensors")
    resumed = adamas.load(tmp_path / "run.safetensors", fresh())
    assert resumed.model.second.weight is resumed.model.first.weight
    assert torch.equal(finish(resumed), finish(fresh()))


def test_saving_does_not_change_the_run(tmp_path):
    run = stopped(make_run(), 2)
    run.save(tmp_path / "run.safetensors")
    assert torch.equal(finish(run), finish(make_run()))


def test_automatic_checkpoints_are_written_at_the_requested_steps(tmp_path, monkeypatch):
    file = tmp_path / "new" / "run.safetensors"
    saved = []
    save = checkpoint.Checkpoints.save
    monkeypatch.setattr(
        checkpoint.Checkpoints,
        "save",
        lambda self, state: (saved.append(state["spending"]["steps_done"]), save(self, state)),
    )
    run = make_run(steps=7, checkpoint=file, checkpoint_every=3)
    expected = finish(make_run(steps=7))
    assert torch.equal(finish(run), expected)
    assert saved == [0, 3, 6, 7]
    assert journaled(file) == []
    again = make_run(steps=7, checkpoint=file, checkpoint_every=3, resume=True)
    assert again.steps_done == 7
    assert list(again) == []
    assert torch.equal(parameters(again), expected)


def test_a_run_that_stopped_resumes_by_the_same_call(tmp_path):
    def fresh():
        return make_run(checkpoint=tmp_path / "run.safetensors", checkpoint_every=2, resume=True)

    assert fresh().steps_done == 0  # there is no file yet
    stopped(fresh(), 5)
    resumed = fresh()
    assert resumed.steps_done == 4
    assert torch.equal(finish(resumed), finish(make_run()))
    assert resumed.ledger.entries == make_finished().ledger.entries


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint": "x"}, "checkpoint_every=None"),
        ({"checkpoint_every": 3}, "checkpoint=None"),
        ({"resume": True}, "checkpoint with resume=True"),
        ({"checkpoint": "x", "checkpoint_every": 0}, "checkpoint_every=0"),
    ],
)
def test_checkpoint_options_that_do_not_fit_together_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make_run(**changes)


def test_an_existing_file_is_neither_overwritten_nor_continued_by_accident(tmp_path):
    file = tmp_path / "run.safetensors"
    stopped(make_run(), 2).save(file)
    before = file.read_bytes()
    with pytest.raises(ValueError, match=r"checkpoint=.*resume=True"):
        make_run(checkpoint=file, checkpoint_every=1)
    assert file.read_bytes() == before


@pytest.mark.slow
def test_an_extended_run_resumes_from_the_original_call(tmp_path):
    def fresh():
        return make_run(noise_multiplier=None, epsilon=1.0, accountant="rdp")

    def extended():
        run = fresh()
        finish(run)
        run.extend(steps=4, epsilon=2.0)
        return run

    expected = finish(extended())
    stopped(extended(), 8).save(tmp_path / "run.safetensors")
    resumed = adamas.load(tmp_path / "run.safetensors", fresh())
    assert (resumed.steps, resumed.steps_done, resumed.budget) == (10, 8, 2.0)
    assert torch.equal(finish(resumed), expected)
    assert 1.9 < resumed.epsilon() <= 2.0
    assert len(resumed.ledger.entries) == 2
    assert all(isinstance(event, dp_accounting.PoissonSampledDpEvent) for event, _ in resumed.ledger.entries)
