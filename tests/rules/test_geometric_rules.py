"""Rules that shape the clipping follow their papers, also through `privatize`, and resume bit for bit."""

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adamas.engines.stacked import Stacked
from adamas.noise import GaussianNoise
from adamas.privatize import privatize
from tests.support.geometric_setups import SETUPS, Setup, advance, every_setup, one_of_each
from tests.support.geometric_steps import (
    BATCH,
    RATES,
    STEPS,
    Problem,
    assert_near,
    flat,
    parameters,
    problem,
    set_rate,
    tensors,
)
from tests.support.rule_steps import saved_and_loaded


def follow(setup: Setup, given: Problem, sigma: float, groups: bool = False) -> None:
    """Compares all steps of a rule with those of its reference."""
    expected = setup.run(given, sigma)
    params = parameters(given.theta)
    rule = setup.make(params, groups=groups)
    for t in range(STEPS):
        actual = advance(setup, rule, params, given, t, sigma)
        for name, a, b in zip(("theta", "release", "center", "scale"), actual, expected[t], strict=True):
            assert_near(a, b, f"{name} of step {t + 1}")


@pytest.mark.slow
@every_setup
@pytest.mark.parametrize("sigma", [0.0, 0.4, 2.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_fifty_steps_match_the_paper(setup, sigma, seed):
    follow(setup, problem(seed), sigma)


@pytest.mark.slow
@every_setup
def test_splitting_the_parameters_into_groups_changes_nothing(setup):
    follow(setup, problem(0), 0.4, groups=True)


def test_the_setups_are_different_algorithms():
    runs = {str(setup): setup.run(problem(0), 0.4)[-1][0] for setup in SETUPS}
    assert len(runs) == len(SETUPS)
    for (one, a), (other, b) in itertools.combinations(runs.items(), 2):
        assert np.abs(a - b).max() > 1e-6, f"{one} and {other} take the same steps"


class GivenNoise(GaussianNoise):
    """Adds given values instead of random ones, in the order of the geometry's parameters."""

    def __init__(self, values: Tensor) -> None:
        super().__init__(0)
        self.values = values

    def add_normal_(self, out: Tensor, std: float = 1.0, key: tuple[int, ...] = (), scales=None) -> Tensor:
        each = std if scales is None else torch.from_numpy(scales.times(std, 0, out.numel()))
        return out.add_((self.values * each).view(out.shape))


@one_of_each
@pytest.mark.parametrize("seed", [0, 1])
def test_steps_on_releases_of_privatize_match_the_paper(setup, seed):
    given, sigma = problem(seed), 0.4
    expected = setup.run(given, sigma)
    params = parameters(given.theta)
    rule = setup.make(params)
    sizes = [p.numel() for p in params]
    for t in range(STEPS):
        set_rate(rule, RATES[t])
        if t + 1 in setup.public:
            rule.observe(dict(zip(params, tensors(setup.public[t + 1]), strict=True)))
        geometry = rule.geometry().scaled(setup.clip_norm)
        n = len(given.examples[t])
        parts = torch.split(torch.tensor(given.examples[t]), sizes, dim=1)
        stacked = {p: part.reshape(n, *p.shape) for p, part in zip(params, parts, strict=True)}
        drawn = dict(zip(params, tensors(given.xi[t]), strict=True))
        release = privatize(
            [(Stacked(stacked), 0)] if n else [],
            geometry,
            noise_multiplier=sigma,
            expected_batch_size=BATCH,
            noise=GivenNoise(torch.cat([drawn[p].flatten() for p in geometry.scale])),
            charge=lambda _: (),
        )
        assert_near(flat(params, release.mean), expected[t][1], f"release of step {t + 1}")
        release.write_to(rule)
        rule.step()
        assert_near(flat(params, {p: p.detach() for p in params}), expected[t][0], f"step {t + 1}")


@pytest.mark.slow
@every_setup
@pytest.mark.parametrize("stop", [1, 4, 20, 25])
def test_a_resumed_rule_is_bit_equal(setup, stop):
    # The stops cover both phases of every DP2 setup, and a step with a public gradient.
    given = problem(0)
    params = parameters(given.theta)
    rule = setup.make(params)
    for t in range(stop):
        advance(setup, rule, params, given, t, 0.4)
    state = saved_and_loaded(rule.state_dict())
    twins = [nn.Parameter(p.detach().clone()) for p in params]
    resumed = setup.make(twins, lr=123.0)
    resumed.load_state_dict(state)
    for t in range(stop, STEPS):
        ours = advance(setup, rule, params, given, t, 0.4)
        theirs = advance(setup, resumed, twins, given, t, 0.4)
        for name, a, b in zip(("theta", "release", "center", "scale"), ours, theirs, strict=True):
            assert np.array_equal(a, b), f"{name} of step {t + 1}"


@one_of_each
def test_computing_the_geometry_changes_nothing(setup):
    given = problem(0)
    params, twins = parameters(given.theta), parameters(given.theta)
    rule, twin = setup.make(params), setup.make(twins)
    for t in range(20):
        before = copy.deepcopy(rule.state_dict())
        first, second = rule.geometry(), rule.geometry()
        assert np.array_equal(flat(params, first.scale), flat(params, second.scale))
        assert str(before) == str(rule.state_dict())
        ours = advance(setup, rule, params, given, t, 0.4)
        theirs = advance(setup, twin, twins, given, t, 0.4)
        for a, b in zip(ours, theirs, strict=True):
            assert np.array_equal(a, b)
