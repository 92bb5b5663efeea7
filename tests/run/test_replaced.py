"""Rehearsals: copies of a run with some parts replaced, which spend nothing and leave the run unchanged."""

import copy

import pytest
import torch

from adamas import DataLedger
from adamas.check.replay import Silent
from adamas.engines import ENGINES, Loop
from tests.support.small_runs import loss, make_run


def test_a_rehearsal_spends_nothing(tmp_path):
    ledger = DataLedger.create(tmp_path / "data.ledger", epsilon=50.0, delta=1e-3)
    run = make_run(data_ledger=ledger, checkpoint=tmp_path / "run.safetensors", checkpoint_every=1)
    rehearsal = run._replaced()
    for _ in rehearsal:
        pass
    assert rehearsal.steps_done == run.steps
    assert rehearsal.epsilon() > 0
    assert (run.steps_done, run.ledger.entries, run.epsilon()) == (0, [], 0)
    assert ledger.spendings() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.ledger"]


def test_a_rehearsal_may_exceed_the_budget():
    rehearsal = make_run(epsilon=1.0, noise_multiplier=None, steps=2)._replaced()
    (batch,) = rehearsal.loader.batches(0, 1)
    for _ in range(3):
        rehearsal.privatize(batch)
    assert rehearsal.epsilon() > 1.0


def test_only_the_given_parts_are_replaced():
    run = make_run()
    before = (run.noise, run.loader, run.engine, run.make_engine, run.loss)
    noise, loader = Silent(0), copy.copy(run.loader)
    other = run._replaced(noise=noise, loader=loader, engine="loop", loss=lambda m, b: loss(m, b) * 2)
    assert (other.noise, other.loader, other.engine, other.make_engine) == (noise, loader, "loop", Loop)
    assert (run.noise, run.loader, run.engine, run.make_engine, run.loss) == before
    assert other.model is run.model
    assert other.rule is run.rule
    assert (other.steps, other.delta, other.budget) == (run.steps, run.delta, run.budget)


def test_batches_belong_to_the_run_whose_loader_made_them():
    run = make_run()
    other = run._replaced(loader=copy.copy(run.loader))
    with pytest.raises(TypeError, match=r"run\.batches"):
        run.privatize(next(iter(other.batches())))


def test_an_engine_may_be_any_function_and_is_not_registered():
    run, names, made = make_run(), list(ENGINES), []

    def engine(model, loss, data):
        made.append(len(data[0]))
        return Loop(model, loss, data)

    for _ in run._replaced(engine=engine):
        pass
    assert made
    assert list(ENGINES) == names


def test_a_run_keeps_the_engine_that_it_was_made_with(monkeypatch):
    run = make_run(engine="loop")
    monkeypatch.setitem(ENGINES, "loop", None)
    for _ in run:
        pass
    assert run.steps_done == run.steps


def test_rehearsals_of_a_rehearsal_share_its_ledger():
    first = make_run()._replaced()
    second = first._replaced(noise=Silent(0))
    for _ in second:
        break
    assert first.steps_done == second.steps_done == 1


def test_the_geometry_is_that_of_the_next_release():
    run = make_run(clip_norm=0.5)
    assert run.geometry().scale == {p: 0.5 for p in run.model.parameters()}
    stock = torch.optim.SGD(run.model.parameters(), lr=0.1)
    run.rule = stock
    assert run.geometry().scale == {p: 0.5 for p in run.model.parameters()}
