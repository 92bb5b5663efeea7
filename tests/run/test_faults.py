"""Faults, injected: no silent wrong number, no lost spending, a message that names the remedy.

Kills and full disks are in test_crashes.py, damaged files in test_unusable_checkpoints.py, two runs on one ledger in test_budget.py,
ranks that die in test_distributed_checkpoints.py. docs/reliability.md lists all of them.
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
from tests.support.small_runs import N, finish, loss, make_data, make_model, make_run

NAN, INF = float("nan"), float("inf")


def vector(run):
    return torch.nn.utils.parameters_to_vector(run.model.parameters()).detach().clone()


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
    """A finite loss with a gradient that is not: the root of 0."""
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
def test_one_spoilt_example_is_as_if_it_were_not_there(fault, engine):
    """Compared with the same draws and noise where the example's loss is constant."""
    x, y = make_data().tensors
    bad = torch.arange(N) == 17
    data = TensorDataset(x, y, bad)

    def trained(a_loss):
        model = make_model()
        run = adamas.make_private(
            model,
            rules.SGD(model.parameters(), lr=0.5),
            data,
            a_loss,
            batch_size=30,
            steps=4,
            noise_multiplier=0.5,
            delta=1e-3,
            seed=2,
            engine=engine,
            micro_batch_size=7,
        )
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
    """The loss fails for one micro-batch; then the loop is started again."""
    calls = []

    def failing(model, batch):
        calls.append(len(batch[0]))
        if len(calls) == failing.at:
            raise error
        return loss(model, batch)

    model = make_model()
    failing.at = 0
    run = adamas.make_private(
        model, rules.Adam(model.parameters(), lr=0.01), make_data(), failing,
        batch_size=12, steps=6, noise_multiplier=1.0, delta=1e-3, seed=7, micro_batch_size=3, engine="vmap",
    )  # fmt: skip
    failing.at = len(calls) + call
    with pytest.raises(error):
        finish(run)
    assert len(run.ledger.entries) <= 1
    assert sum(count for _, count in run.ledger.entries) == run.steps_done == run.noise.draws
    expected = finish(make_run(micro_batch_size=3, engine="vmap"))
    assert torch.equal(finish(run), expected)
    assert run.epsilon() == make_finished().epsilon()


def make_finished():
    run = make_run()
    finish(run)
    return run


@pytest.mark.parametrize("place", ["noise", "step"])
def test_ctrl_c_after_the_record_costs_what_it_recorded(place, monkeypatch):
    """Between the record and the end of the step: the release counts, and the run can go on."""
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


def test_no_example_is_refused():
    model = make_model()
    with pytest.raises(ValueError, match="at least one example"):
        adamas.make_private(
            model, rules.SGD(model.parameters()), make_data(0), loss,
            batch_size=1, steps=1, noise_multiplier=1.0, delta=1e-3,
        )  # fmt: skip


def test_one_example_trains():
    run = make_run(data=make_data(1), batch_size=1, noise_multiplier=2.0)
    assert torch.isfinite(finish(run)).all()
    assert run.epsilon() == pytest.approx(
        calibrate.epsilon(noise_multiplier=2.0, sampling_rate=1.0, steps=6, delta=1e-3)
    )


def test_a_sampling_rate_of_one_takes_everybody_and_says_so():
    run = make_run(batch_size=N)
    assert all(len(run.loader.sampler.indices(step).indices) == N for step in range(6))
    finish(run)
    unsampled = make_run(batch_size=N // 2)
    finish(unsampled)
    assert run.epsilon() > 1.5 * unsampled.epsilon()
    with pytest.raises(ValueError, match=f"batch_size={N + 1}"):
        make_run(batch_size=N + 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_larger_than_a_micro_batch_by_one(engine):
    sizes = [len(make_run().loader.sampler.indices(step).indices) for step in range(6)]
    for size in {max(sizes), sizes[0]}:
        result = finish(make_run(micro_batch_size=size - 1, engine=engine))
        torch.testing.assert_close(result, finish(make_run(engine=engine)), rtol=1e-4, atol=1e-6)


# --- numbers --------------------------------------------------------------------------------------------


def test_a_model_in_double_precision():
    x, y = make_data().tensors
    data = TensorDataset(x.double(), y)
    exact = finish(make_run(make_model(dtype=torch.float64), data=data, noise_multiplier=0))
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact.float(), finish(make_run(noise_multiplier=0)), rtol=1e-3, atol=1e-4)
    noisy = make_run(make_model(dtype=torch.float64), data=data)
    assert all(mean.dtype == torch.float64 for step in noisy for mean in step.release.mean.values())


def test_a_model_in_half_precision_gets_noise_of_full_precision():
    """The variance of 40 releases with a tiny signal, of the 24 numbers of a layer each.

    A false alarm beyond 6 standard errors has probability 2e-9; a noise of sqrt(2) times as much is rejected.
    """
    x, y = make_data().tensors
    model = nn.Linear(5, 4).to(torch.bfloat16)

    def small(model, batch):
        return 1e-6 * model(batch[0]).float().square().sum(1)

    run = adamas.make_private(
        model, rules.SGD(model.parameters(), lr=1e-9), TensorDataset(x.bfloat16(), y), small,
        batch_size=12, steps=40, noise_multiplier=1.0, delta=1e-3, seed=1,
    )  # fmt: skip
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


# --- models and losses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "shape"),
    [
        (lambda model, batch: loss(model, batch).mean(), "a scalar"),
        (lambda model, batch: loss(model, batch)[:, None], "2 axes"),
        (lambda model, batch: loss(model, batch)[:, None].expand(-1, 3), "2 axes"),
    ],
)
def test_a_loss_of_another_shape_is_refused_with_the_remedy(wrong, shape):
    model = make_model()
    with pytest.raises(adamas.UnsupportedError, match=rf"{shape}.*reduction"):
        adamas.make_private(
            model, rules.SGD(model.parameters()), make_data(), wrong,
            batch_size=10, steps=1, noise_multiplier=1.0, delta=1e-3,
        )  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_a_parameter_in_no_graph_gets_noise_like_the_others(engine):
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


def test_a_second_run_on_the_same_model_has_its_own_epsilon_and_the_data_add_up(tmp_path):
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


def test_no_clock_changes_a_result(monkeypatch, tmp_path):
    expected = finish(make_run())
    jumps = iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: 1e9 * (2 + (-1) ** next(jumps)))
    ledger = adamas.DataLedger.create(tmp_path / "l", epsilon=20.0, delta=1e-3, accountant="rdp")
    run = make_run(checkpoint=tmp_path / "run", checkpoint_every=2, data_ledger=ledger, progress=True)
    assert torch.equal(finish(run), expected)
    (spending,) = ledger.spendings()
    assert spending.entries == run.ledger.entries
