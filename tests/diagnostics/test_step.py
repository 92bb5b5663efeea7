"""Diagnostics of a step match values computed by hand, and the law of pure noise."""

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import adamas
from adamas import Geometry, PrivateGradient, rules
from adamas.diagnostics import diagnose, histograms, squared_weights
from adamas.noise import GaussianNoise
from tests.support.diagnosed_runs import GRADIENTS, VARIANCES, by_hand, check, feed, make_run
from tests.support.small_runs import finish


@pytest.mark.parametrize("floor", [None, 0.5, 1e-3, "auto"])
def test_diagnostics_match_a_computation_by_hand(floor):
    p = nn.Parameter(torch.zeros(4, 5, dtype=torch.float64))
    options = {"lr": 0.3, "betas": (0.8, 0.95)}
    rule = rules.Adam([p], **options) if floor is None else rules.AdamBC([p], floor=floor, **options)
    feed(rule, GRADIENTS, VARIANCES)
    number = adamas.theory.automatic_floor(7, 3.0, 0.95) if floor == "auto" else floor
    expected = by_hand(GRADIENTS, VARIANCES, (0.8, 0.95), 0.3, number)
    seen = diagnose(rule, {p: "w"})
    assert seen["step"] == 7
    check(seen["layers"]["w"], expected)
    check(seen["overall"], expected)
    assert seen["overall"]["center_norm"] == 0.0
    assert seen["overall"]["state_bytes_per_parameter"] == 16.0
    if floor is not None:
        assert 0 < expected["on_floor"] <= 1


def test_overall_values_cover_all_coordinates_and_each_group_uses_its_own_options():
    a, b = (nn.Parameter(torch.zeros(n, dtype=torch.float64)) for n in (3, 5))
    groups = [{"params": [a], "lr": 0.1, "floor": 2.0}, {"params": [b], "lr": 0.4, "floor": 0.1}]
    rule = rules.AdamBC(groups, betas=(0.9, 0.99))
    rng = np.random.default_rng(0)
    gs = [(rng.normal(size=3), rng.normal(size=5) * 3) for _ in range(4)]
    for g, h in gs:
        PrivateGradient({a: torch.tensor(g), b: torch.tensor(h)}, {a: 0.5, b: 2.0}).write_to(rule)
        rule.step()
    one = by_hand([g for g, _ in gs], [0.5] * 4, (0.9, 0.99), 0.1, 2.0)
    two = by_hand([h for _, h in gs], [2.0] * 4, (0.9, 0.99), 0.4, 0.1)
    seen = diagnose(rule, {a: "a", b: "b"})
    check(seen["layers"]["a"], one)
    check(seen["layers"]["b"], two)
    overall = seen["overall"]
    assert overall["coordinates"] == 8
    assert overall["on_floor"] == pytest.approx((3 * one["on_floor"] + 5 * two["on_floor"]) / 8)
    assert overall["update_rms"] == pytest.approx(
        math.sqrt((3 * one["update_rms"] ** 2 + 5 * two["update_rms"] ** 2) / 8)
    )
    assert overall["noise_share"] == pytest.approx(
        (3 * 0.5 + 5 * 2.0) / (3 * 0.5 / one["noise_share"] + 5 * 2.0 / two["noise_share"])
    )
    assert overall["effective_lr"]["0%"] == min(one["effective_lr"]["0%"], two["effective_lr"]["0%"])


def test_the_norm_of_a_center_is_measured_in_the_geometry_of_the_run():
    p = nn.Parameter(torch.zeros(4, 5, dtype=torch.float64))
    rule = rules.MacAdam([p], h1=1e-3, h2=1.0)
    assert diagnose(rule, {p: "w"})["overall"]["center_norm"] == 0.0
    feed(rule, GRADIENTS, [torch.full((4, 5), 3.0)] * 7)
    geometry = rule.geometry()
    expected = np.linalg.norm((geometry.center[p] / geometry.scale[p]).numpy())
    assert diagnose(rule, {p: "w"})["overall"]["center_norm"] == pytest.approx(expected)
    scaled = diagnose(rule, {p: "w"}, geometry=geometry.scaled(4.0))
    assert scaled["overall"]["center_norm"] == pytest.approx(expected / 4)
    both = Geometry({p: 2.0}, {p: 0.5})
    assert diagnose(rule, {p: "w"}, geometry=both)["overall"]["center_norm"] == pytest.approx(
        math.sqrt(20) * 4
    )
    # Plain MacAdam subtracts no variance, but tracks its mean.
    assert rule.state[p]["phi"] == pytest.approx(3.0 * (1 - 0.999**7))
    layer = diagnose(rule, {p: "w"})["layers"]["w"]
    assert layer["noise_share"] == pytest.approx(3.0 / float(rule.moments(p).v_hat.mean()))
    assert layer["effective_lr"] is not None


def test_the_clip_norm_of_a_run_divides_the_norm_of_the_center():
    norms = []
    for clip_norm in (1.0, 0.5):
        run = make_run(lambda ps: rules.MacAdam(ps, h1=1e-3, h2=1.0), clip_norm=clip_norm)
        finish(run)
        geometry = run.rule.geometry()
        square = sum(float((c / geometry.scale[p]).square().sum()) for p, c in geometry.center.items())
        norms.append(run.diagnostics()["overall"]["center_norm"])
        assert norms[-1] == pytest.approx(math.sqrt(square) / clip_norm, rel=1e-5)


@pytest.mark.parametrize("name", rules.RULES)
@pytest.mark.parametrize("steps", [0, 2])
def test_diagnostics_of_every_rule_are_json_and_do_not_change_the_run(name, steps):
    def fresh():
        return make_run(lambda ps: rules.RULES[name](ps, lr=0.01))

    run, twin = fresh(), fresh()
    if steps == 0:
        seen = run.diagnostics(histograms=True)
        json.dumps(seen, allow_nan=False)
        assert all(layer["update_rms"] is None for layer in seen["layers"].values())
    for step in run:
        seen = run.diagnostics(histograms=step.number == 3)
        json.dumps(seen, allow_nan=False)
        assert seen["step"] == step.number
        assert seen["private"] is True
        assert list(seen["layers"]) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert torch.equal(torch.nn.utils.parameters_to_vector(run.model.parameters()).detach(), finish(twin))
    assert run.ledger.entries == twin.ledger.entries


@pytest.mark.parametrize(
    ("make", "bytes_"),
    [
        (lambda p: rules.SGD(p, lr=0.1), 0.0),
        (lambda p: rules.SGD(p, lr=0.1, momentum=0.9), 4.0),
        (lambda p: torch.optim.SGD(p, lr=0.1), 0.0),
        (lambda p: torch.optim.Adam(p, lr=0.1), 8 + 4 * 4 / 34),  # plus a step number per tensor
    ],
)
def test_diagnostics_without_moments_are_none_where_unknown(make, bytes_):
    run = make_run(make)
    finish(run)
    overall = run.diagnostics(histograms=True)["overall"]
    assert overall["coordinates"] == 34
    assert overall["state_bytes_per_parameter"] == pytest.approx(bytes_)
    assert overall["center_norm"] == 0.0
    unknown = ("on_floor", "noise_share", "effective_lr", "update_rms", "signal_to_noise")
    assert all(overall[key] is None for key in unknown)
    assert run.diagnostics(histograms=True)["histograms"] is None


def test_the_size_of_the_state_counts_shared_storage_once():
    p = nn.Parameter(torch.zeros(2, 50))
    rule = rules.SGD([p], lr=0.1)
    shared = torch.zeros(100, dtype=torch.uint8)
    rule.state[p].update({"codes": shared, "view": shared[:10], "nested": [torch.zeros(25), {"x": 1.0}]})
    assert diagnose(rule, {p: "w"})["overall"]["state_bytes_per_parameter"] == 2.0


def test_non_finite_values_are_none():
    p = nn.Parameter(torch.zeros(3))
    rule = rules.Adam([p], lr=0.1, eps=0.0)
    feed(rule, [[0.0, 0.0, 1.0]], [0.0])
    seen = diagnose(rule, {p: "w"})
    json.dumps(seen, allow_nan=False)
    layer = seen["layers"]["w"]
    assert layer["effective_lr"]["0%"] == pytest.approx(0.1)
    assert layer["effective_lr"]["100%"] is None
    assert layer["update_rms"] is None
    assert layer["signal_to_noise"] is None  # no noise
    assert layer["noise_share"] == 0.0
    broken = nn.Parameter(torch.zeros(2))
    rule = rules.AdamBC([broken])
    feed(rule, [[math.nan, 1.0]], [1.0])
    json.dumps([diagnose(rule, {broken: "w"}), histograms(rule)], allow_nan=False)
    assert histograms(rule)["v_hat"]["not_finite"] == 1


def test_frozen_parameters_are_skipped_and_empty_ones_have_no_values():
    frozen, empty, p = nn.Parameter(torch.zeros(3), requires_grad=False), nn.Parameter(torch.zeros(0)), None
    p = nn.Parameter(torch.zeros(2))
    rule = rules.AdamBC([frozen, empty, p], floor=1.0)
    PrivateGradient({empty: torch.zeros(0), p: torch.ones(2)}, {empty: 1.0, p: 1.0}).write_to(rule)
    rule.step()
    seen = diagnose(rule, {empty: "empty", p: "p"})
    json.dumps([seen, histograms(rule)], allow_nan=False)
    assert list(seen["layers"]) == ["empty", "p"]
    assert seen["layers"]["empty"]["on_floor"] is None
    assert seen["overall"]["coordinates"] == 2
    with pytest.raises(ValueError, match=r"name for each parameter .* \(2,\)"):
        diagnose(rule, {empty: "empty"})


@pytest.mark.parametrize("steps", [1, 3, 60])
def test_pure_noise_has_a_signal_to_noise_of_one_and_sits_half_on_a_tiny_floor(steps):
    """False-alarm rate: 1e-6 for the ratio, whose law is exact, and about that for the others."""
    d, variance = 20_000, 0.04
    p = nn.Parameter(torch.zeros(d, dtype=torch.float64))
    rule = rules.AdamBC([p], lr=0.1, floor=1e-12)
    noise = GaussianNoise(11)
    gradients = [noise.normal_(torch.empty(d, dtype=torch.float64)) * 0.2 for _ in range(steps)]
    feed(rule, gradients, [variance] * steps)
    seen = diagnose(rule, {p: "w"})["overall"]
    # Each coordinate of m_hat is normal with the variance in the divisor: d times the ratio is chi-squared.
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], d) / d
    assert low < seen["signal_to_noise"] < high
    if steps == 3:  # the test rejects a wrong factor
        weights = 0.1 * 0.9 ** np.arange(3)
        for wrong in ((weights**2).sum(), 0.1 / 1.9, 0.1):
            assert not low < seen["signal_to_noise"] * squared_weights(3, 0.9) / wrong < high
    # v_hat is a mean of squares, each of variance 2 phi^2.
    b2 = 0.999
    spread = math.sqrt(2 * (1 - b2) * (1 + b2**steps) / ((1 + b2) * (1 - b2**steps)) / d)
    assert abs(1 / seen["noise_share"] - 1) < 4.9 * spread
    # A chi-squared value is below its mean with a probability above one half.
    below = stats.chi2.cdf(
        steps, steps
    )  # as if weights were equal, which holds to a relative (1 - b2) * steps
    assert abs(seen["on_floor"] - below) < 4.9 * math.sqrt(0.25 / d) + 1e-3


def test_a_signal_raises_the_signal_to_noise_by_its_power():
    p = nn.Parameter(torch.zeros(10_000, dtype=torch.float64))
    rule = rules.Adam([p])
    noise = GaussianNoise(5)
    draws = [noise.normal_(torch.empty(10_000, dtype=torch.float64)) + 1.0 for _ in range(100)]
    feed(rule, draws, [1.0] * 100)
    expected = 1 + 1 / squared_weights(100, 0.9)
    assert diagnose(rule, {p: "w"})["overall"]["signal_to_noise"] == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_squared_weights_are_those_of_the_moving_average(beta):
    for t in (1, 2, 7, 300):
        weights = (1 - beta) * beta ** np.arange(t) / (1 - beta**t)
        assert squared_weights(t, beta) == pytest.approx((weights**2).sum(), rel=1e-12)
    with pytest.raises(ValueError, match="beta"):
        squared_weights(3, 1.0)
