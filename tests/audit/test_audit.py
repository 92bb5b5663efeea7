"""`adamas audit`: the lower bound is valid, above 0, and catches a sabotaged run."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

import adamas
import adamas.privatize
from adamas import rules
from adamas._streams import Seed
from adamas.accounting.ledger import Ledger
from adamas.audit import canaries as canaries_module
from adamas.audit.canaries import Canaries
from adamas.audit.one_run import audit, bound, least_false_rate, p_value, rates
from adamas.check.replay import Silent, whitened_sums
from adamas.engines import ENGINES
from adamas.noise import GaussianNoise
from tests.support.command_line import call
from tests.support.small_runs import loss
from tests.support.user_modules import user_modules

N = 600


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 20, generator=generator)
    return TensorDataset(x, x[:, :10].argmax(1))


def maker(rule="adam", **changes):
    """Returns a function that makes a fresh run; `changes` replace options of `adamas.make_private`."""
    settings = {"batch_size": 60, "steps": 30, "noise_multiplier": 1.0, "delta": 1e-5, "accountant": "rdp"}

    def make_run():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 12), nn.Tanh(), nn.Linear(12, 10))
        optimizer = rules.RULES[rule](model.parameters(), lr=0.01)
        return adamas.make_private(model, optimizer, data(), loss, **({"seed": 1} | settings | changes))

    return make_run


# --- sound runs, with fixed seeds: without them 1 audit in 20 may be wrong --------------------------------


@pytest.fixture(scope="module")
def of_sgd():
    return audit(maker("sgd", noise_multiplier=0.5), seed=0)


@pytest.mark.audits
@pytest.mark.parametrize("rule", rules.RULES)
def test_the_bound_is_below_the_claim_and_not_0_for_every_rule(rule, of_sgd):
    result = audit(maker(rule, noise_multiplier=0.5), seed=0)
    assert result.verdict == "pass"
    assert result.canaries == 300
    assert 5.0 < result.lower_bound < result.claimed < 22.0
    assert result.any_mechanism > 1.0
    # In its own geometry, every rule makes the same release of the canaries.
    assert result.any_mechanism == pytest.approx(of_sgd.any_mechanism, abs=0.2)


@pytest.mark.audits
def test_the_bound_falls_as_the_noise_grows():
    quiet, usual, loud = (
        audit(maker(noise_multiplier=z, batch_size=120, steps=20), seed=2) for z in (0.6, 1.2, 5.0)
    )
    assert quiet.lower_bound > usual.lower_bound > 0
    assert loud.lower_bound <= 0.1
    assert all(result.lower_bound <= result.claimed for result in (quiet, usual, loud))


@pytest.mark.parametrize(
    "sampling", [{"sampling": "shuffled"}, {"sampling": "truncated-poisson", "max_batch_size": 100}]
)
def test_other_samplers_are_audited(sampling, monkeypatch):
    monkeypatch.setattr(adamas.PrivateRun, "epsilon", lambda self: 9.0)  # composing is slow
    result = audit(maker(noise_multiplier=2.0, accountant="pld", **sampling), seed=0)
    assert result.verdict in ("pass", "out of reach")
    assert 0 <= result.lower_bound < 9.0
    assert (result.gaussian > 0) == (sampling["sampling"] == "shuffled")


@pytest.mark.audits
def test_an_audit_counts_its_steps_runs_and_canaries():
    result = audit(maker(noise_multiplier=0.6, micro_batch_size=7), seed=0, steps=4, canaries=60, runs=3)
    assert (result.steps, result.runs, result.canaries) == (4, 3, 180)
    assert result.claimed < audit(maker(noise_multiplier=0.6), seed=0, canaries=10).claimed


def test_a_run_without_noise_claims_nothing():
    result = audit(maker(noise_multiplier=0.0), seed=0)
    assert result.claimed == math.inf
    assert result.verdict == "out of reach"
    assert result.any_mechanism > 2.0


def test_an_audit_leaves_the_run_unchanged():
    run = maker()()
    before, names = run.loader, list(ENGINES)
    planted = Canaries(run, 20, Seed(0).generator("canaries", 0))
    assert planted.run.loader is not before
    for _ in planted.run:
        break
    assert (planted.run.steps_done, run.steps_done, run.ledger.entries) == (1, 0, [])
    assert run.loader is before
    assert run.engine in names
    assert list(ENGINES) == names
    with pytest.raises(ValueError, match="canaries=601"):
        audit(maker(), canaries=601)


@pytest.mark.parametrize("rule", ["sgd", "macadam", "dp2-rmsprop"])
def test_a_canary_adds_one_unit_along_its_own_coordinate(rule):
    run = maker(rule, batch_size=N)()  # every example takes part in every step
    run.noise = Silent(run.noise.seed)
    planted = Canaries(run, 50, Seed(3).generator("canaries", 0))
    run = planted.run
    for number, batch in enumerate(run.batches()):
        geometry = run.geometry()
        release = run.privatize(batch)
        sums = whitened_sums(run, release, geometry)
        seen = np.zeros(50)
        for p, (numbers, places) in planted._coordinates.items():
            seen[numbers.numpy()] = sums[p][places].numpy()
        np.testing.assert_allclose(seen - planted._known, planted.included, atol=2e-3)
        planted.watch(release)
        release.write_to(run.rule)
        run.rule.step()
        planted._geometry = canaries_module._at(run.geometry(), planted._coordinates)
        if number == 3:
            break
    assert planted.scores[planted.included].min() > planted.scores[~planted.included].max()


# --- sabotaged runs -------------------------------------------------------------------------------------


def no_noise(monkeypatch):
    monkeypatch.setattr(GaussianNoise, "add_normal_", lambda self, out, *rest, **options: out)


def divide_noise(monkeypatch, divisor):
    original = GaussianNoise.add_normal_
    monkeypatch.setattr(
        GaussianNoise,
        "add_normal_",
        lambda self, out, std, *rest, **options: original(self, out, std / divisor, *rest, **options),
    )


def noise_on_the_mean(monkeypatch):
    divide_noise(monkeypatch, 60)  # the batch size


def a_third_of_the_noise(monkeypatch):
    divide_noise(monkeypatch, 3)


def no_clipping(monkeypatch):
    monkeypatch.setattr(adamas.privatize, "clip_weights", torch.ones_like)


def no_records(monkeypatch):
    monkeypatch.setattr(Ledger, "record_release", lambda self, sampler, step, z: None)


def nothing(monkeypatch):
    pass


@pytest.mark.audits
@pytest.mark.parametrize(
    ("sabotage", "verdict"),
    [
        (nothing, "pass"),
        (no_noise, "fail"),
        (noise_on_the_mean, "fail"),
        (no_clipping, "fail"),
        (a_third_of_the_noise, "fail"),
    ],
)
def test_a_sabotaged_run_is_caught(monkeypatch, sabotage, verdict):
    sabotage(monkeypatch)
    result = audit(maker(), seed=0)
    assert result.verdict == verdict
    assert (result.lower_bound > result.claimed) == (verdict == "fail")
    assert 4 < result.claimed < 8


@pytest.mark.audits
def test_a_run_without_noise_is_caught_under_pld_too(monkeypatch):
    no_noise(monkeypatch)
    assert audit(maker(accountant="pld"), seed=0).verdict == "fail"


@pytest.mark.audits
@pytest.mark.parametrize("sabotage", [no_noise, noise_on_the_mean, no_clipping])
def test_the_bound_for_any_mechanism_is_enough_to_catch_a_small_claim(monkeypatch, sabotage):
    make_run = maker(noise_multiplier=2.5, batch_size=60)
    sabotage(monkeypatch)
    result = audit(make_run, seed=0)
    assert result.any_mechanism > result.claimed > 1


def test_releases_that_are_not_recorded_are_caught(monkeypatch):
    no_records(monkeypatch)
    result = audit(maker(noise_multiplier=0.5), seed=0)
    assert result.claimed == 0
    assert result.verdict == "fail"


# --- the statistics -------------------------------------------------------------------------------------


def test_the_p_value_is_that_of_the_paper():
    # With delta = 0: a binomial tail.
    assert p_value(100, 80, 60, 1.0, 0.0) == pytest.approx(stats.binom.sf(59, 80, 1 / (1 + math.exp(-1))))
    # With delta > 0: a loop over i, from the theorem.
    q, m, r, v, delta = 1 / (1 + math.exp(-0.7)), 200, 50, 41, 1e-3
    steepest = max(sum(stats.binom.pmf(j, r, q) for j in range(v - i, v)) / i for i in range(1, v + 1))
    expected = stats.binom.sf(v - 1, r, q) + 2 * m * delta * steepest
    assert p_value(m, r, v, 0.7, delta) == pytest.approx(expected)
    assert p_value(10, 10, 0, 0.0, 0.0) == 1.0


def test_the_bound_for_any_mechanism_has_the_stated_error_rate():
    epsilon, generator, wrong, shown = 1.0, np.random.default_rng(0), 0, []
    for _ in range(40):  # of randomized response, the worst mechanism
        included = generator.random(400) < 0.5
        right = generator.random(400) < 1 / (1 + math.exp(-epsilon))
        scores = np.where(included == right, 1.0, 0.0) + 1e-6 * generator.random(400)
        lower = bound(scores, included, 0.0, 0.95)[0]
        wrong += lower > epsilon
        shown.append(lower)
    assert wrong <= 6  # 7 or more have probability 0.3% if 1 in 20 is wrong
    assert np.median(shown) > 0.4


def gaussian_profile(mu):
    epsilons = np.linspace(0.0, mu * mu / 2 + 7 * mu, 128)
    deltas = stats.norm.cdf(mu / 2 - epsilons / mu) - np.exp(epsilons) * stats.norm.cdf(
        -mu / 2 - epsilons / mu
    )
    return epsilons, deltas


def test_the_bound_for_gaussians_has_the_stated_error_rate_and_is_tight():
    generator, mu, wrong, near = np.random.default_rng(1), 2.0, 0, 0
    true, less = gaussian_profile(mu), gaussian_profile(0.7 * mu)
    for _ in range(200):
        included = generator.random(500) < 0.5
        scores = mu * (generator.standard_normal(500) + mu * included) - mu * mu / 2
        limits = rates(scores, included, 0.95, (-2.0, 0.0, 2.0))
        wrong += any(false < least_false_rate(alarms, *true) for alarms, false in limits)
        near += any(false < least_false_rate(alarms, *less) for alarms, false in limits)
    assert wrong <= 20
    assert near > 100


def test_the_least_false_rate_is_on_the_curve():
    for alarms in (0.1, 0.5, 0.9):
        expected = stats.norm.cdf(stats.norm.ppf(alarms) - 2.0)
        assert least_false_rate(alarms, *gaussian_profile(2.0)) == pytest.approx(expected, rel=0.02)
        assert least_false_rate(alarms, *gaussian_profile(2.0)) <= expected * (1 + 1e-9)


# --- the command ----------------------------------------------------------------------------------------

MODULE = """
    import torch, adamas
    from torch.nn import functional as F

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    def make_run():
        torch.manual_seed(0)
        model = torch.nn.Linear(20, 20)
        data = torch.utils.data.TensorDataset(torch.randn(400, 20), torch.ones(400).long())
        return adamas.make_private(
            model, adamas.rules.AdamBC(model.parameters()), data, loss, batch_size=40, steps=20,
            noise_multiplier=1.0, delta=1e-5, seed=0, accountant="rdp")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    with user_modules(tmp_path, monkeypatch, module_of_the_audit=MODULE):
        yield tmp_path


def test_the_command_prints_words_or_json_and_exits_by_the_verdict(capsys, folder, monkeypatch):
    arguments = ["audit", "module_of_the_audit:make_run", "--seed", "0"]
    code, printed, _ = call(capsys, *arguments)
    assert code == 0
    for word in ("pass", "lower bound", "claimed", "Steinke"):
        assert word in printed
    no_noise(monkeypatch)
    code, printed, error = call(capsys, *arguments, "--json", "--progress")
    assert code == 1
    answer = json.loads(printed)
    assert answer["verdict"] == "fail"
    assert answer["lower_bound"] > answer["claimed"]
    assert answer["confidence"] == 0.95
    assert "audited steps" in error


@pytest.mark.parametrize("option", ["--confidence=1", "--runs=0", "--canaries=-1", "--steps=-3"])
def test_a_bad_option_gives_one_line_and_exit_code_2(capsys, folder, option):
    code, printed, error = call(capsys, "audit", "module_of_the_audit:make_run", option)
    assert (code, printed) == (2, "")
    assert error.count("\n") == 1


def test_the_module_in_the_docs_can_be_audited():
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names = {}
    exec(block, names)
    result = audit(names["make_run"], canaries=20, steps=2, seed=0)
    assert result.claimed < 5.0
    assert result.verdict != "fail"
