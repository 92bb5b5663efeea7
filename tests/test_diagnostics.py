"""Diagnostics: against hand computation, and what they must never do."""

import io
import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import adamas
from adamas import Geometry, PrivateGradient, diagnostics, rules
from adamas.diagnostics import QUANTILES, RawMoments, diagnose, histogram, histograms, squared_weights
from adamas.noise import GaussianNoise


def loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def make_data(n=60, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 5, generator=generator)
    return TensorDataset(x.to(dtype), (x[:, 0] > 0).long())


def make_run(rule=None, dtype=torch.float32, **changes):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)
    arguments = {"batch_size": 12, "steps": 6, "noise_multiplier": 1.0, "delta": 1e-3, "seed": 7} | changes
    made = rules.Adam(model.parameters(), lr=0.01) if rule is None else rule(model.parameters())
    return adamas.make_private(model, made, make_data(dtype=dtype), loss, **arguments)


def finish(run):
    for _ in run:
        pass
    return torch.nn.utils.parameters_to_vector(run.model.parameters()).detach()


def feed(rule, gradients, variances):
    """Steps of a rule on given releases: a list of arrays and variances per step, for one parameter."""
    (p,) = rule.trainable()
    for g, variance in zip(gradients, variances, strict=True):
        PrivateGradient({p: torch.as_tensor(g, dtype=p.dtype)}, {p: variance}).write_to(rule)
        rule.step()
    return p


def by_hand(gradients, variances, betas, lr, floor=None, eps=1e-8):
    """The values of one parameter with NumPy, from the definitions and not from the rule's state."""
    t, (b1, b2) = len(gradients), betas
    w1 = (1 - b1) * b1 ** np.arange(t)[::-1] / (1 - b1**t)
    w2 = (1 - b2) * b2 ** np.arange(t)[::-1] / (1 - b2**t)
    g = np.array(gradients)
    m, v = np.tensordot(w1, g, 1), np.tensordot(w2, g**2, 1)
    phi = float(np.dot(w2, variances))
    denominator = np.sqrt(v) + eps if floor is None else np.sqrt(np.maximum(v - phi, floor))
    return {
        "coordinates": m.size,
        "on_floor": None if floor is None else float(np.mean(v - phi <= floor)),
        "noise_share": phi / v.mean(),
        "effective_lr": {f"{q}%": float(np.percentile(lr / denominator, q)) for q in QUANTILES},
        "update_rms": float(np.sqrt(np.mean((lr * m / denominator) ** 2))),
        "signal_to_noise": float((m**2).sum() / ((w1**2).sum() * phi * m.size)),
    }


GRADIENTS = np.random.default_rng(3).normal(size=(7, 4, 5)) * 2
VARIANCES = [3.0] * 7


def check(seen, expected):
    for key, value in expected.items():
        assert seen[key] == (None if value is None else pytest.approx(value, rel=1e-10)), key


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


def test_a_centre_is_measured_in_the_clipping_of_the_run():
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


def test_the_clip_norm_of_a_run_divides_the_norm_of_the_centre():
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


# --- raw ------------------------------------------------------------------------------------------------


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


def test_the_ledger_has_a_release_without_noise_for_every_step_of_a_raw_run():
    run = make_run(raw=True)
    finish(run)
    ((event, count),) = run.ledger.entries
    assert count == 6
    assert [inner.noise_multiplier for inner in event.event.events] == [1.0, 0.0]


def test_the_release_without_noise_is_recorded_before_it_is_seen(monkeypatch):
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


def test_raw_is_an_answer_of_a_raw_run_only():
    run = make_run()
    finish(run)
    with pytest.raises(ValueError, match=r"make_private\(\.\.\., raw=True\)"):
        run.diagnostics(raw=True)
    with pytest.raises(TypeError, match="raw=1"):
        make_run(raw=1)


@pytest.mark.parametrize("rule", [rules.AdamBC, rules.SGD, rules.MacAdam])
def test_raw_does_not_change_the_training(rule):
    raw = make_run(rule, raw=True)
    assert torch.equal(finish(raw), finish(make_run(rule)))
    json.dumps(raw.diagnostics(raw=True, histograms=True), allow_nan=False)


def test_a_budget_chooses_the_noise_of_a_raw_run_and_promises_nothing():
    options = {"noise_multiplier": None, "epsilon": 2.0, "steps": 3, "accountant": "rdp"}
    run, private = make_run(raw=True, **options), make_run(**options)
    assert run.noise_multiplier == private.noise_multiplier
    finish(run)
    assert run.steps_done == 3
    assert run.epsilon() == math.inf


@pytest.mark.parametrize("rule", [rules.Adam, rules.MacAdam])
def test_without_noise_the_raw_moments_are_the_private_ones(rule):
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


def test_with_noise_the_raw_moments_are_those_of_the_clipped_gradients():
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


def test_strong_noise_turns_the_update_away():
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


def test_nothing_without_noise_is_in_the_state_of_a_raw_run():
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


def test_a_raw_state_continues_in_a_raw_run_only():
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


def test_a_release_of_magnitudes_is_none_of_the_gradients_that_are_averaged():
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


def test_the_module_explains_what_it_sees():
    assert "post-processing" in diagnostics.__doc__
    assert "Privacy: none" in diagnostics.RawMoments.__doc__


@pytest.mark.parametrize("correction", [0.25, 4.0])
def test_a_wrong_correction_does_not_change_what_the_noise_is(correction):
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


def test_statistics_of_moments_are_those_of_their_values():
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
