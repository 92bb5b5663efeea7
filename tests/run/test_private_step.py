"""The private step: equal to torch.optim without noise, reproducible, and safe to interrupt."""

import copy
import math
from collections import UserDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import adamas
from adamas import rules
from tests.support.custom_losses import make_run_with
from tests.support.small_runs import N, finish, loss, make_data, make_model, make_run
from tests.support.stopped_runs import parameters, stopped


@pytest.mark.parametrize(
    ("name", "options", "reference"),
    [
        ("sgd", {"lr": 0.1, "momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        ("adam", {"lr": 0.01}, lambda p: torch.optim.Adam(p, lr=0.01)),
        (
            "adamw",
            {"lr": 0.01, "weight_decay": 0.1},
            lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
        ),
    ],
)
def test_without_noise_and_clipping_every_step_equals_torch_optim(name, options, reference):
    x, y = make_data().tensors
    data = TensorDataset(x.double(), y)
    model = make_model(dtype=torch.float64)
    twin = copy.deepcopy(model)
    rule = rules.RULES[name](model.parameters(), **options)
    run = make_run(model, rule, data, noise_multiplier=0, clip_norm=math.inf, batch_size=N, steps=5)
    optimizer = reference(twin.parameters())
    for _ in run:
        optimizer.zero_grad()
        loss(twin, data.tensors).mean().backward()
        optimizer.step()
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)
    assert run.epsilon() == math.inf


def test_a_stock_optimizer_gets_the_same_releases_as_the_rule():
    ours = finish(make_run())
    model = make_model()
    theirs = finish(make_run(model, torch.optim.Adam(model.parameters(), lr=0.01)))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_loop_written_out_trains_the_same_weights():
    run = make_run()
    for batch in run.batches():
        release = run.privatize(batch)
        release.write_to(run.rule)
        run.rule.step()
    assert torch.equal(parameters(run), finish(make_run()))
    assert run.steps_done == 6
    assert run.epsilon() == pytest.approx(
        adamas.calibrate.epsilon(noise_multiplier=1.0, sampling_rate=0.2, steps=6, delta=1e-3)
    )


def test_micro_batches_engines_and_workers_do_not_change_the_result():
    expected = finish(make_run())
    for changes in ({"micro_batch_size": 1}, {"micro_batch_size": 5}, {"engine": "loop"}, {"num_workers": 2}):
        torch.testing.assert_close(finish(make_run(**changes)), expected, rtol=1e-4, atol=1e-6)


def test_an_example_with_nan_counts_as_absent():
    x, y = make_data().tensors
    broken = x.clone()
    broken[17] = math.nan

    def absent_loss(model, batch):
        gone = (batch[0] == x[17]).all(1)
        return torch.where(gone, 0.0, loss(model, batch))

    options = {"batch_size": 30, "steps": 5, "noise_multiplier": 0.5, "seed": 1}
    result = finish(make_run_with(loss, data=TensorDataset(broken, y), **options))
    expected = finish(make_run_with(absent_loss, **options))
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-7)


def test_an_empty_batch_is_a_noise_only_step_and_counts():
    run = make_run(batch_size=1, steps=30, data=make_data(200), delta=1e-4)
    sizes = [len(run.loader.sampler.indices(step).indices) for step in range(30)]
    assert 0 in sizes
    empty = sizes.index(0)
    for step in run:
        moved = max(float(g.abs().max()) for g in step.release.mean.values())
        assert moved > 0
        if step.number == empty + 1:
            noise = torch.cat([g.flatten() for g in step.release.mean.values()])
            assert 0.5 < noise.std() < 1.6  # 34 values of standard deviation 1 = z C / B
    assert run.ledger.entries[0][1] == 30


def test_leaving_the_loop_within_a_logical_batch_leaks_nothing_into_the_next():
    class Interrupted(Exception):
        pass

    calls, interrupt_at = 0, None

    def interrupted_loss(model, batch):
        nonlocal calls
        calls += 1
        if calls == interrupt_at:
            raise Interrupted
        return loss(model, batch)

    undisturbed = finish(make_run_with(loss, micro_batch_size=2))
    run = make_run_with(interrupted_loss, micro_batch_size=2)
    calls, interrupt_at = 0, 3  # in the first logical batch
    with pytest.raises(Interrupted):
        finish(run)
    assert run.steps_done == 0
    assert run.ledger.entries == []
    assert run.noise.draws == 0
    assert torch.equal(finish(run), undisturbed)


def test_a_loop_that_breaks_and_continues_equals_an_uninterrupted_one():
    expected = finish(make_run(num_workers=2))
    run = stopped(make_run(num_workers=2), 2)
    for _ in run.batches():  # loads a batch, and releases nothing
        break
    assert run.steps_done == 2
    assert torch.equal(finish(run), expected)
    assert list(run) == []


def test_dropout_is_reproducible_and_leaves_the_global_generator_alone():
    def dropout_model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    before = torch.get_rng_state()
    torch.manual_seed(5)
    a = finish(make_run(dropout_model()))
    torch.manual_seed(5)
    state = torch.get_rng_state()
    model = dropout_model()
    torch.manual_seed(5)
    b = finish(make_run(model))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(a, b)
    torch.set_rng_state(before)


def test_numpy_numbers_are_accepted_as_options():
    run = make_run(steps=np.int64(2), batch_size=np.int32(12), noise_multiplier=np.float32(1.5))
    assert finish(run).isfinite().all()
    assert run.epsilon() > 0


def test_a_batch_of_a_custom_type_reaches_the_loss_unchanged():
    class Encoding(UserDict):  # as tokenizers return
        def __getattr__(self, name):
            return self.data[name]

    def collate(examples):
        return Encoding(
            x=torch.stack([x for x, _ in examples]), y=torch.tensor([int(y) for _, y in examples])
        )

    def loss_by_attribute(model, batch):
        return loss(model, (batch.x, batch["y"]))

    assert finish(make_run_with(loss_by_attribute, collate_fn=collate)).isfinite().all()


def test_the_model_after_a_run_is_an_ordinary_module():
    model = make_model()
    keys, attributes = list(model.state_dict()), [dict(m.__dict__) for m in model.modules()]
    finish(make_run(model))
    assert list(model.state_dict()) == keys
    for module, before in zip(model.modules(), attributes, strict=True):
        assert module.__dict__.keys() == before.keys()
        assert not module._forward_hooks
        assert not module._backward_hooks
    model.zero_grad()
    loss(model, make_data().tensors).mean().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_progress_is_shown_only_when_asked(capsys):
    finish(make_run())
    assert capsys.readouterr().err == ""
    finish(make_run(progress=True))
    assert "6/6" in capsys.readouterr().err
