"""Diagnostics of a step against values computed by hand, and on noise alone; histograms."""

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import adamas
from adamas import Geometry, PrivateGradient, rules
from adamas.diagnostics import diagnose, histogram, histograms, squared_weights
from adamas.noise import GaussianNoise
from tests.support.diagnosed_runs import GRADIENTS, VARIANCES, by_hand, check, feed, finish, make_run

# --- one step -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("floor", [None, 0.5, 1e-3, "auto"])
def test_values_are_those_of_a_hand_computation(floor):
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


def test_overall_is_over_all_coordinates_and_groups_keep_their_own_settings():
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


def test_a_center_is_measured_in_the_clipping_of_the_run():
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
    # Plain MacAdam subtracts no variance, and follows its mean.
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
def test_every_rule_gives_json_and_is_not_changed_by_being_looked_at(name, steps):
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
        (lambda p: torch.optim.Adam(p, lr=0.1), 8 + 4 * 4 / 34),  # and a step number per tensor
    ],
)
def test_optimizers_without_moments_say_what_they_can(make, bytes_):
    run = make_run(make)
    finish(run)
    overall = run.diagnostics(histograms=True)["overall"]
    assert overall["coordinates"] == 34
    assert overall["state_bytes_per_parameter"] == pytest.approx(bytes_)
    assert overall["center_norm"] == 0.0
    unknown = ("on_floor", "noise_share", "effective_lr", "update_rms", "signal_to_noise")
    assert all(overall[key] is None for key in unknown)
    assert run.diagnostics(histograms=True)["histograms"] is None


def test_a_small_state_is_counted_as_it_is_stored():
    p = nn.Parameter(torch.zeros(2, 50))
    rule = rules.SGD([p], lr=0.1)
    shared = torch.zeros(100, dtype=torch.uint8)
    rule.state[p].update({"codes": shared, "view": shared[:10], "nested": [torch.zeros(25), {"x": 1.0}]})
    assert diagnose(rule, {p: "w"})["overall"]["state_bytes_per_parameter"] == 2.0


def test_what_is_not_finite_is_none():
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


def test_frozen_and_empty_parameters_do_no_harm():
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


# --- noise alone ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 3, 60])
def test_noise_alone_has_a_signal_to_noise_of_one_and_sits_half_on_a_tiny_floor(steps):
    """False alarms: 1e-6 for the ratio, whose law is exact; about that for the others, taken as normal."""
    d, variance = 20_000, 0.04
    p = nn.Parameter(torch.zeros(d, dtype=torch.float64))
    rule = rules.AdamBC([p], lr=0.1, floor=1e-12)
    noise = GaussianNoise(11)
    gradients = [noise.normal_(torch.empty(d, dtype=torch.float64)) * 0.2 for _ in range(steps)]
    feed(rule, gradients, [variance] * steps)
    seen = diagnose(rule, {p: "w"})["overall"]
    # Each coordinate of m_hat is normal with the variance that (5) divides by: d times (5) is chi-squared.
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], d) / d
    assert low < seen["signal_to_noise"] < high
    if steps == 3:  # a wrong factor is told from the right one
        weights = 0.1 * 0.9 ** np.arange(3)
        for wrong in ((weights**2).sum(), 0.1 / 1.9, 0.1):
            assert not low < seen["signal_to_noise"] * squared_weights(3, 0.9) / wrong < high
    # v_hat averages squares of variance 2 phi^2.
    b2 = 0.999
    spread = math.sqrt(2 * (1 - b2) * (1 + b2**steps) / ((1 + b2) * (1 - b2**steps)) / d)
    assert abs(1 / seen["noise_share"] - 1) < 4.9 * spread
    # A chi-squared value is below its mean with a probability above one half.
    below = stats.chi2.cdf(steps, steps)  # equal weights, up to (1 - b2) steps
    assert abs(seen["on_floor"] - below) < 4.9 * math.sqrt(0.25 / d) + 1e-3


def test_a_signal_raises_the_ratio_by_its_share():
    p = nn.Parameter(torch.zeros(10_000, dtype=torch.float64))
    rule = rules.Adam([p])
    noise = GaussianNoise(5)
    draws = [noise.normal_(torch.empty(10_000, dtype=torch.float64)) + 1.0 for _ in range(100)]
    feed(rule, draws, [1.0] * 100)
    expected = 1 + 1 / squared_weights(100, 0.9)
    assert diagnose(rule, {p: "w"})["overall"]["signal_to_noise"] == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_the_weights_of_an_average_are_squared_and_summed(beta):
    for t in (1, 2, 7, 300):
        weights = (1 - beta) * beta ** np.arange(t) / (1 - beta**t)
        assert squared_weights(t, beta) == pytest.approx((weights**2).sum(), rel=1e-12)
    with pytest.raises(ValueError, match="beta"):
        squared_weights(3, 1.0)


# --- histograms -----------------------------------------------------------------------------------------


def test_histograms_count_every_coordinate():
    p = nn.Parameter(torch.zeros(4, 5, dtype=torch.float64))
    rule = rules.AdamBC([p], floor=0.5)
    feed(rule, GRADIENTS, VARIANCES)
    seen = histograms(rule, bins=4)
    moments = rule.moments(p)
    corrected = (moments.v_hat - 3.0).numpy().ravel()
    assert seen["v_corrected"]["not_positive"] == (corrected <= 0).sum() > 0
    for name, values in {
        "m_hat": moments.m_hat.abs(),
        "v_hat": moments.v_hat,
        "v_corrected": torch.tensor(corrected[corrected > 0]),
        "update_uncorrected": (moments.m_hat / moments.v_hat.sqrt()).abs(),
        "update": (moments.m_hat / moments.denominator).abs(),
    }.items():
        one = seen[name]
        edges = [one["edge"] + one["width"] * k for k in range(len(one["counts"]) + 1)]
        expected, _ = np.histogram(np.log10(values.numpy().ravel()), bins=edges)
        assert one["counts"] == expected.tolist(), name
        assert sum(one["counts"]) + one["below"] + one["not_positive"] == 20
    assert seen["noise_variance"] == pytest.approx(3.0)
    assert seen["floor"] == 0.5
    json.dumps(seen, allow_nan=False)


def test_a_long_tail_is_counted_and_not_drawn():
    values = np.concatenate([np.full(10_000, 2.0), [1e-30, 0.0, -3.0, math.inf]])
    seen = histogram([values], bins=10)
    assert seen["counts"] == [10_000]
    assert (seen["below"], seen["not_positive"], seen["not_finite"]) == (1, 2, 1)
    assert 10 ** seen["edge"] <= 2.0 < 10 ** (seen["edge"] + seen["width"])
    assert len(histogram([np.array([1e-200, 1.0])], bins=10)["counts"]) <= 151
    assert histogram([], bins=10)["counts"] == []
    with pytest.raises(ValueError, match="bins"):
        histograms(rules.SGD([nn.Parameter(torch.zeros(1))]), bins=0)
