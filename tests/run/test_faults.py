"""Injected faults: no result is silently wrong, no spending is lost, and the message names the remedy.

Kills and full disks are in test_crashes.py, damaged files in test_unusable_checkpoints.py, ranks that die in
test_distributed_checkpoints.py, and two runs on one ledger in test_budget.py. docs/reliability.md lists all.
"""

import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import adamas
from adamas import calibrate, rules
from adamas.engines import ENGINES
from tests.support.custom_losses import make_run_with
from tests.support.finished_runs import make_finished
from tests.support.small_runs import N, finish, loss, make_data, make_model, make_run

NAN, INF = float("nan"), float("inf")


# --- examples -------------------------------------------------------------------------------------------


def _with_input(value):
    def faulty(model, x, y, bad):
        return F.cross_entropy(model(torch.where(bad[:, None], value, x)), y, reduction="none")

    return faulty


def _with_loss(value):
    def faulty(model, x, y, bad):
        return F.cross_entropy(model(x), y, reduction="none") * torch.where(bad, value, 1.0)

    return faulty


def _with_gradient(model, x, y, bad):
    """Returns a finite loss whose gradient is not finite: the square root of 0."""
    logits = model(x)
    root = torch.where(bad, 0 * logits.sum(1), 1.0).sqrt()
    return F.cross_entropy(logits, y, reduction="none") + root


FAULTS = {
    "NaN input": _with_input(NAN),
    "infinite input": _with_input(INF),
    "NaN loss": _with_loss(NAN),
    "infinite loss": _with_loss(INF),
    "NaN gradient": _with_gradient,
}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_example_counts_as_absent(fault, engine):
    """Compares with a run of the same batches and noise in which the example's loss is constant."""
    x, y = make_data().tensors
    bad = torch.arange(N) == 17
    data = TensorDataset(x, y, bad)

    def trained(a_loss):
        options = {"batch_size": 30, "noise_multiplier": 0.5, "seed": 2, "micro_batch_size": 7}
        model = make_model()
        rule = rules.SGD(model.parameters(), lr=0.5)
        run = make_run_with(a_loss, model, rule, data, engine=engine, **options)
        assert any(17 in run.loader.sampler.indices(step).indices for step in range(4))
        return finish(run)

    def absent(model, batch):
        return torch.where(batch[2], 0.0, F.cross_entropy(model(batch[0]), batch[1], reduction="none"))

    result = trained(lambda model, batch: FAULTS[fault](model, *batch))
    assert torch.isfinite(result).all()
    torch.testing.assert_close(result, trained(absent), rtol=1e-4, atol=1e-5)


# --- interruptions --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("call", [5, 6, 8])
def test_an_exception_within_a_logical_batch_releases_nothing(error, call):
    """The loss fails on one micro-batch; the loop is then started again."""
    calls = []

    def failing(model, batch):
        calls.append(len(batch[0]))
        if len(calls) == failing.at:
            raise error
        return loss(model, batch)

    model = make_model()
    failing.at = 0
    rule = rules.Adam(model.parameters(), lr=0.01)
    run = make_run_with(failing, model, rule, steps=6, micro_batch_size=3, engine="vmap")
    failing.at = len(calls) + call
    with pytest.raises(error):
        finish(run)
    assert len(run.ledger.entries) <= 1
    assert sum(count for _, count in run.ledger.entries) == run.steps_done == run.noise.draws
    expected = finish(make_run(micro_batch_size=3, engine="vmap"))
    assert torch.equal(finish(run), expected)
    assert run.epsilon() == make_finished().epsilon()


@pytest.mark.parametrize("place", ["noise", "step"])
def test_an_interrupt_after_the_record_counts_the_release(place, monkeypatch):
    """The interrupt comes after the record and before the end of the step; the run can continue."""
    run = make_run()

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    if place == "noise":
        monkeypatch.setattr(type(run.noise), "normal_", interrupted)
        monkeypatch.setattr(type(run.noise), "add_normal_", interrupted)
    else:
        monkeypatch.setattr(type(run.rule), "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        finish(run)
    monkeypatch.undo()
    assert run.steps_done == 1
    one = calibrate.epsilon(noise_multiplier=1.0, sampling_rate=0.2, steps=1, delta=1e-3)
    assert run.epsilon() == pytest.approx(one)
    finish(run)
    assert run.steps_done == 6
    assert run.epsilon() == make_finished().epsilon()


# --- sizes ----------------------------------------------------------------------------------------------


def test_an_empty_data_set_is_refused():
    with pytest.raises(ValueError, match="at least one example"):
        make_run_with(loss, data=make_data(0), batch_size=1)


def test_a_single_example_is_enough_to_train():
    run = make_run(data=make_data(1), batch_size=1, noise_multiplier=2.0)
    assert torch.isfinite(finish(run)).all()
    assert run.epsilon() == pytest.approx(
        calibrate.epsilon(noise_multiplier=2.0, sampling_rate=1.0, steps=6, delta=1e-3)
    )


def test_a_sampling_rate_of_1_takes_every_example_and_costs_more():
    run = make_run(batch_size=N)
    assert all(len(run.loader.sampler.indices(step).indices) == N for step in range(6))
    finish(run)
    half = make_run(batch_size=N // 2)
    finish(half)
    assert run.epsilon() > 1.5 * half.epsilon()
    with pytest.raises(ValueError, match=f"batch_size={N + 1}"):
        make_run(batch_size=N + 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_last_micro_batch_of_one_example_does_not_change_the_result(engine):
    sizes = [len(make_run().loader.sampler.indices(step).indices) for step in range(6)]
    for size in {max(sizes), sizes[0]}:
        result = finish(make_run(micro_batch_size=size - 1, engine=engine))
        torch.testing.assert_close(result, finish(make_run(engine=engine)), rtol=1e-4, atol=1e-6)


# --- numbers --------------------------------------------------------------------------------------------


def test_a_model_in_double_precision_gets_releases_in_double_precision():
    x, y = make_data().tensors
    data = TensorDataset(x.double(), y)
    exact = finish(make_run(make_model(dtype=torch.float64), data=data, noise_multiplier=0))
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact.float(), finish(make_run(noise_multiplier=0)), rtol=1e-3, atol=1e-4)
    noisy = make_run(make_model(dtype=torch.float64), data=data)
    assert all(mean.dtype == torch.float64 for step in noisy for mean in step.release.mean.values())


def test_a_model_in_half_precision_gets_noise_of_full_precision():
    """Tests the variance of 40 releases of 24 numbers each, whose signal is tiny.

    The limit is 6 standard errors: a false alarm has probability 2e-9, and twice the variance is rejected.
    """
    x, y = make_data().tensors
    model = nn.Linear(5, 4).to(torch.bfloat16)

    def small(model, batch):
        return 1e-6 * model(batch[0]).float().square().sum(1)

    rule = rules.SGD(model.parameters(), lr=1e-9)
    run = make_run_with(small, model, rule, TensorDataset(x.bfloat16(), y), steps=40, seed=1)
    values = []
    for step in run:
        for p, mean in step.release.mean.items():
            assert mean.dtype == torch.float32
            values.extend((12 * mean).flatten().tolist())
            assert p.dtype == torch.bfloat16
    n = len(values)
    assert n == 40 * 24
    assert abs(np.var(values) - 1) < 6 * np.sqrt(2 / n)
    assert 6 * np.sqrt(2 / n) < 1


# --- models ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_an_unused_parameter_gets_the_same_noise(engine):
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(5, 2)
            self.unused = nn.Parameter(torch.zeros(2000))

        def forward(self, x):
            return self.used(x)

    torch.manual_seed(0)
    model = Unused()
    run = make_run(model, rules.SGD(model.parameters(), lr=1.0), engine=engine, steps=1)
    finish(run)
    deviation = 12 * float(model.unused.detach().std())
    assert abs(deviation - 1) < 6 / np.sqrt(2 * 2000)  # a false alarm has probability 2e-9; 0 is rejected


def test_a_second_run_on_the_same_model_has_its_own_epsilon_and_adds_to_the_data_ledger(tmp_path):
    ledger = adamas.DataLedger.create(tmp_path / "l", epsilon=20.0, delta=1e-3, accountant="rdp")
    model = make_model()
    first = make_run(model, data_ledger=ledger, seed=1)
    finish(first)
    names = list(model.state_dict())
    second = make_run(model, data_ledger=ledger, seed=2)
    assert second.steps_done == 0
    finish(second)
    assert list(model.state_dict()) == names
    assert second.epsilon() == first.epsilon()
    assert ledger.epsilon() > 1.2 * first.epsilon("rdp")


# --- clocks ---------------------------------------------------------------------------------------------


def test_a_jumping_clock_does_not_change_the_result(monkeypatch, tmp_path):
    expected = finish(make_run())
    jumps = iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: 1e9 * (2 + (-1) ** next(jumps)))
    ledger = adamas.DataLedger.create(tmp_path / "l", epsilon=20.0, delta=1e-3, accountant="rdp")
    run = make_run(checkpoint=tmp_path / "run", checkpoint_every=2, data_ledger=ledger, progress=True)
    assert torch.equal(finish(run), expected)
    (spending,) = ledger.spendings()
    assert spending.entries == run.ledger.entries
