"""What a run shows at every step, and what it says of its epochs."""

import math

import pytest
import torch

import adamas
from adamas import rules
from tests.support.small_runs import make_model, make_run


def test_metrics_are_those_of_the_release_and_the_plan():
    run = make_run(clip_norm=0.5)
    assert "release_norm" not in run.metrics()
    for step in run:
        seen = run.metrics()
        flat = torch.cat([mean.flatten() for mean in step.release.mean.values()])
        noise = 1.0 * 0.5 / 12 * math.sqrt(flat.numel())  # z C/B times the root of the dimension
        assert seen["release_norm"] == pytest.approx(float(flat.norm()), rel=1e-6)
        assert seen["noise_norm"] == pytest.approx(noise, rel=1e-6)
        signal = math.sqrt(max(float(flat.norm()) ** 2 - noise**2, 0))
        assert seen["signal_to_noise"] == pytest.approx(signal / noise, rel=1e-4)
        assert (seen["step"], seen["epoch"]) == (step.number, step.number / 5)
        assert (seen["delta"], seen["noise_multiplier"], seen["lr"]) == (1e-3, 1.0, 0.01)
        assert seen["epsilon"] >= run.epsilon()


def test_the_noise_norm_of_a_scale_per_coordinate_is_that_of_its_variances():
    model = make_model()
    run = make_run(model, rules.MacAdam(model.parameters(), lr=0.01))
    for step in run:
        variances = [
            torch.as_tensor(step.release.noise_variance[p]).expand(p.shape) for p in step.release.mean
        ]
        expected = math.sqrt(sum(float(v.double().sum()) for v in variances))
        assert run.metrics()["noise_norm"] == pytest.approx(expected, rel=1e-5)


def test_a_run_that_is_not_private_says_so():
    for changes in ({"noise_multiplier": 0.0}, {"raw": True}):
        run = make_run(**changes)
        next(iter(run))
        assert run.metrics()["epsilon"] == math.inf


def test_steps_know_their_epoch():
    run = make_run(steps=None, epochs=2)
    assert run.steps_per_epoch == 5
    seen = [(step.number, step.epoch, step.ends_epoch) for step in run]
    assert seen[0] == (1, 1, False)
    assert seen[4:6] == [(5, 1, True), (6, 2, False)]
    assert seen[-1] == (10, 2, True)


def test_a_run_of_other_optimizers_has_metrics_after_its_gradients_are_gone():
    model = make_model()
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    run = make_run(model, rule)
    next(iter(run))
    rule.zero_grad()
    assert run.metrics()["release_norm"] > 0


# --- stopping, and releases before the run ---------------------------------------------------------------


def test_a_stopped_run_ends_after_the_step_and_can_continue():
    run = make_run()
    seen = []
    for step in run:
        seen.append(step.number)
        if step.number == 2:
            run.stop()
    assert seen == [1, 2]
    assert [step.number for step in run] == [3, 4, 5, 6]


def test_a_stopped_run_saves_itself_and_gives_back_its_reservation(tmp_path):
    ledger = tmp_path / "data.json"
    adamas.DataLedger.create(ledger, epsilon=50.0, delta=1e-3)
    run = make_run(checkpoint=tmp_path / "run.safetensors", checkpoint_every=5, data_ledger=ledger)
    for step in run:
        if step.number == 2:
            run.stop()
    assert adamas.DataLedger(ledger).epsilon() == pytest.approx(run.epsilon(), rel=1e-6)
    again = make_run(
        checkpoint=tmp_path / "run.safetensors", checkpoint_every=5, data_ledger=ledger, resume=True
    )
    assert again.steps_done == 2


def test_callbacks_are_called_in_order_after_each_update():
    model, seen = make_model(), []
    before = [p.detach().clone() for p in model.parameters()]

    def first(run, step):
        moved = any(not torch.equal(p, q) for p, q in zip(run.model.parameters(), before, strict=True))
        seen.append(("first", step.number, moved))

    run = make_run(model, callbacks=[first, lambda run, step: seen.append(("second", step.number, True))])
    for _ in run:
        pass
    assert seen == [(name, n, True) for n in range(1, 7) for name in ("first", "second")]


@pytest.mark.parametrize("callbacks", [[3], "loss", lambda run, step: None])
def test_callbacks_that_are_no_list_of_functions_are_refused(callbacks):
    with pytest.raises(TypeError, match="callbacks="):
        make_run(callbacks=callbacks)
