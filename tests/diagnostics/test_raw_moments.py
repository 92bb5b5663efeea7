"""Raw moments are those of the gradients without noise, and a run that keeps them is not private."""

import io
import json
import math

import numpy as np
import pytest
import torch

from adamas import PrivateGradient, diagnostics, rules
from adamas.diagnostics import RawMoments, diagnose
from tests.support.diagnosed_runs import make_run
from tests.support.small_runs import finish, loss


@pytest.mark.parametrize("sampling", ["poisson", "shuffled", "truncated-poisson"])
def test_a_raw_run_is_not_private_and_says_so(sampling):
    extra = {"max_batch_size": 30} if sampling == "truncated-poisson" else {}
    run = make_run(raw=True, sampling=sampling, **extra)
    assert run.private is False
    next(iter(run))
    assert run.epsilon() == math.inf
    assert "NOT PRIVATE" in run.privacy_statement()
    assert "raw=True" in run.privacy_statement()
    assert "differentially" not in run.privacy_statement()
    assert run.diagnostics()["private"] is False
    assert "raw" not in run.diagnostics()
    assert run.diagnostics(raw=True)["private"] is False


def test_a_raw_run_records_a_release_without_noise_for_every_step():
    run = make_run(raw=True)
    finish(run)
    ((event, count),) = run.ledger.entries
    assert count == 6
    assert [inner.noise_multiplier for inner in event.event.events] == [1.0, 0.0]


def test_a_raw_release_is_recorded_before_it_is_used(monkeypatch):
    seen = []
    run = make_run(raw=True)
    monkeypatch.setattr(run._raw_moments, "add", lambda mean: seen.append(run.epsilon()))
    next(iter(run))
    assert seen == [math.inf]


def test_a_run_without_noise_says_that_it_is_not_private():
    run = make_run(noise_multiplier=0)
    finish(run)
    assert run.diagnostics()["private"] is False
    assert "NOT PRIVATE" in run.privacy_statement()
    assert "noise multiplier is 0" in run.privacy_statement()
    assert "NOT PRIVATE" not in make_run().privacy_statement()


def test_raw_diagnostics_need_a_raw_run():
    run = make_run()
    finish(run)
    with pytest.raises(ValueError, match=r"make_private\(\.\.\., raw=True\)"):
        run.diagnostics(raw=True)
    with pytest.raises(TypeError, match="raw=1"):
        make_run(raw=1)


@pytest.mark.parametrize("rule", [rules.AdamBC, rules.SGD, rules.MacAdam])
def test_raw_moments_do_not_change_the_training(rule):
    raw = make_run(rule, raw=True)
    assert torch.equal(finish(raw), finish(make_run(rule)))
    json.dumps(raw.diagnostics(raw=True, histograms=True), allow_nan=False)


def test_a_raw_run_takes_the_noise_of_its_budget_but_has_infinite_epsilon():
    options = {"noise_multiplier": None, "epsilon": 2.0, "steps": 3, "accountant": "rdp"}
    run, private = make_run(raw=True, **options), make_run(**options)
    assert run.noise_multiplier == private.noise_multiplier
    finish(run)
    assert run.steps_done == 3
    assert run.epsilon() == math.inf


@pytest.mark.parametrize("rule", [rules.Adam, rules.MacAdam])
def test_without_noise_raw_and_private_moments_are_equal(rule):
    run = make_run(rule, dtype=torch.float64, noise_multiplier=0, raw=True)
    finish(run)
    for p in run.model.parameters():
        moments = run.rule.moments(p)
        pairs = run._raw_moments._pairs(p, run.rule.param_groups[0])
        np.testing.assert_allclose(pairs["m"], moments.m_hat.ravel(), rtol=1e-10)
        np.testing.assert_allclose(pairs["v"], moments.v_hat.ravel(), rtol=1e-10)
    overall = run.diagnostics(raw=True)["raw"]["overall"]
    assert overall["moment_cosine"] == pytest.approx(1.0)
    assert overall["update_cosine"] == pytest.approx(1.0)


def test_raw_moments_are_those_of_clipped_gradients_without_noise():
    run = make_run(lambda p: rules.SGD(p, lr=0.1), raw=True, steps=1, noise_multiplier=50.0)
    model = run.model
    rows = run.loader.sampler.indices(0).indices
    total = [torch.zeros_like(p) for p in model.parameters()]
    for row in rows:
        x, y = run.loader.dataset[row]
        model.zero_grad()
        loss(model, (x[None], y[None])).sum().backward()
        norm = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
        for sums, p in zip(total, model.parameters(), strict=True):
            sums += p.grad / max(1.0, float(norm)) / 12
    finish(run)
    seen = run.diagnostics(raw=True, histograms=True)["raw"]
    for name, sums in zip(("0.weight", "0.bias", "2.weight", "2.bias"), total, strict=True):
        layer = seen["layers"][name]
        assert layer["v_hat"]["100%"] == pytest.approx(float(sums.square().max()), rel=1e-4)
        assert layer["v_hat"]["50%"] == pytest.approx(float(sums.square().quantile(0.5)), rel=1e-4)
        assert layer["moment_cosine"] is None  # SGD has no moments to compare with
    counted = seen["histograms"]["v_hat"]
    assert sum(counted["counts"]) + counted["below"] + counted["not_positive"] == 34


def test_strong_noise_lowers_the_cosine_with_the_raw_moments():
    quiet, loud = (make_run(rules.AdamBC, raw=True, noise_multiplier=z) for z in (0.02, 100.0))
    cosines = []
    for run in (quiet, loud):
        finish(run)
        cosines.append(run.diagnostics(raw=True)["raw"]["overall"]["moment_cosine"])
    assert cosines[0] > 0.98
    assert abs(cosines[1]) < 0.9


def leaves(value):
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def test_the_state_of_a_raw_run_contains_nothing_without_noise():
    run, private = make_run(rules.AdamBC, raw=True), make_run(rules.AdamBC)
    finish(run)
    finish(private)
    file = io.BytesIO()
    torch.save(run.state_dict(), file)
    kept, expected = run.state_dict(), private.state_dict()
    for part in ("model", "rule", "noise"):
        ours, theirs = list(leaves(kept[part])), list(leaves(expected[part]))
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    assert kept.keys() == expected.keys()
    for m, v in run._raw_moments._raw.values():
        for tensor in (m, v, m.float(), v.float()):
            assert tensor.numpy().tobytes() not in file.getvalue()


def test_the_state_of_a_raw_run_loads_into_a_raw_run_only():
    run = make_run(raw=True)
    next(iter(run))
    state = run.state_dict()
    with pytest.raises(ValueError, match="raw=False"):
        make_run().load_state_dict(state)
    resumed = make_run(raw=True)
    resumed.load_state_dict(state)
    assert resumed.epsilon() == math.inf
    finish(resumed)
    json.dumps(resumed.diagnostics(raw=True), allow_nan=False)
    unknown = make_run().state_dict()
    del unknown["settings"]["raw"]
    for raw in (False, True):
        with pytest.raises(ValueError, match=f"raw={raw}"):
            make_run(raw=raw).load_state_dict(unknown)


def test_releases_of_absolute_values_do_not_enter_the_raw_moments():
    run = make_run(lambda p: rules.SGD(p, lr=0.1), raw=True, steps=2)
    batch = next(iter(run.batches()))
    run.privatize(batch, absolute=True)
    assert run._raw_moments._raw == {}
    run.privatize(batch)
    assert run._raw_moments._raw
    assert run.epsilon() == math.inf


def test_the_progress_display_says_that_a_raw_run_is_not_private(capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    finish(make_run(progress=True))
    assert "NOT PRIVATE" not in capfd.readouterr().err
    finish(make_run(progress=True, raw=True))
    assert "NOT PRIVATE" in capfd.readouterr().err


def test_the_docstrings_state_the_privacy_of_diagnostics():
    assert "post-processing" in diagnostics.__doc__
    assert "Privacy: none" in diagnostics.RawMoments.__doc__


@pytest.mark.parametrize("correction", [0.25, 4.0])
def test_a_wrong_correction_does_not_change_the_reported_noise(correction):
    seen = []
    for factor in (1.0, correction):
        p = torch.nn.Parameter(torch.zeros(1000))
        rule = rules.AdamBC([p], floor=1e-3, correction=factor)
        generator = torch.Generator().manual_seed(0)
        for _ in range(5):
            gradient = torch.randn(1000, generator=generator)
            PrivateGradient({p: gradient}, {p: 1.0}).write_to(rule)
            rule.step()
        entry = diagnose(rule, {p: "p"})["overall"]
        moments = rule.moments(p)
        seen.append((entry["noise_share"], entry["signal_to_noise"], moments.v_hat.mean().item()))
        expected = (moments.v_hat - factor * moments.phi_hat).clamp(min=1e-3).sqrt()
        torch.testing.assert_close(moments.denominator, expected, rtol=1e-4, atol=1e-6)
    assert seen[0] == pytest.approx(seen[1], rel=1e-5)


def test_statistics_of_moments_match_their_values():
    p = torch.nn.Parameter(torch.zeros(3))
    rule = rules.AdamBC([p], floor=1.0)
    raw = RawMoments(rule)
    raw.add({p: torch.tensor([1.0, 2.0, 0.0])})
    PrivateGradient({p: torch.tensor([3.0, 4.0, 5.0])}, {p: 7.0}).write_to(rule)
    rule.step()
    seen = raw.compare({p: "p"}, histograms=True)["statistics"]
    expected = {
        "m": [1, 2, 0],
        "private m": [3, 4, 5],
        "v": [1, 4, 0],
        "private v": [9, 16, 25],
        "corrected v": [2, 9, 18],
        "private m over v": [3, 2],  # 5 over 0 is not finite
        "uncorrected update": [1, 1, 1],
        "private update": [3 / 2**0.5, 4 / 3, 5 / 18**0.5],
    }
    for name, values in expected.items():
        array = torch.tensor(values, dtype=torch.float64)
        assert seen[name]["min"] == pytest.approx(float(array.min()), rel=1e-5, abs=1e-12), name
        assert seen[name]["median"] == pytest.approx(float(array.quantile(0.5)), rel=1e-5), name
        assert seen[name]["max"] == pytest.approx(float(array.max()), rel=1e-5), name
        assert seen[name]["mean"] == pytest.approx(float(array.mean()), rel=1e-5), name
        assert seen[name]["not_finite"] == 3 - len(values), name
