"""Every rule of RULES: against its paper, against its torch parent, and as a torch optimizer."""

import copy
import functools
import inspect
import io
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from adamas import PrivateGradient, rules, theory
from adamas.rules import RULES, Rule
from tests.reference import adam_family, micro_adam, rmsprop, sgd

STEPS = 50
NAN, INF = float("nan"), float("inf")


# --- the rules, their references and their parents ------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """A rule with options, and what it must equal.

    Attributes:
        rule: Its name in RULES.
        options: Arguments, without lr.
        reference: (theta_0, gradients, rates, variances) -> theta_1, ..., theta_T.
        parent: The torch optimizer that it equals without noise, made of parameters and lr.
    """

    rule: str
    options: dict[str, Any]
    reference: Callable[..., list[np.ndarray]]
    parent: Callable[..., torch.optim.Optimizer] | None = None

    def __str__(self) -> str:
        return " ".join([self.rule, *(f"{name}={value}" for name, value in self.options.items())])

    def make(self, params: Any, lr: float = 0.1, **options: Any) -> Rule:
        return RULES[self.rule](params, lr=lr, **(self.options | options))


def sgd_reference(**options: float) -> Callable[..., list[np.ndarray]]:
    return lambda theta, gradients, lr, variances: sgd.sgd(theta, gradients, lr, **options)


def adam_reference(**options: float) -> Callable[..., list[np.ndarray]]:
    return lambda theta, gradients, lr, variances: adam_family.adam(theta, gradients, lr, **options)


def bc_reference(
    beta2: float = 0.999, correction: float = 1.0, **options: Any
) -> Callable[..., list[np.ndarray]]:
    def reference(theta, gradients, lr, variances):
        subtracted = adam_family.averaged([correction * variance for variance in variances], beta2)
        return adam_family.adam_bc(theta, gradients, lr, subtracted, beta2=beta2, **options)

    return reference


def rmsprop_reference(**options: float) -> Callable[..., list[np.ndarray]]:
    return lambda theta, gradients, lr, variances: rmsprop.rmsprop(theta, gradients, lr, **options)


def micro_reference(**options: Any) -> Callable[..., list[np.ndarray]]:
    def reference(theta, gradients, lr, variances):
        flat = [[np.ravel(g)] for g in gradients]
        steps = micro_adam.micro_adam([np.ravel(theta)], flat, lr, **options)
        return [thetas[0].reshape(np.shape(theta)) for thetas, _, _ in steps]

    return reference


def dp2_reference(lr2: float, period: int, rho: float, eps: float) -> Callable[..., list[np.ndarray]]:
    """DP2-RMSProp on releases in the units of a gradient: Li et al. (2023), Algorithm 1."""

    def reference(theta, gradients, lr, variances):
        theta, a, total = np.array(theta), np.zeros_like(theta), np.zeros_like(theta)
        trajectory = []
        for t, (g, eta) in enumerate(zip(gradients, lr, strict=True)):
            if t % (2 * period) < period:
                theta, total = theta - eta * g, total + g
                if (t + 1) % period == 0:
                    a, total = rho * a + (1 - rho) * (total / period) ** 2, np.zeros_like(total)
            else:
                theta = theta - lr2 * eta / 0.1 * g / (np.sqrt(a) + eps)  # setups are made with lr = 0.1
            trajectory.append(theta)
        return trajectory

    return reference


def automatic_floor(beta2: float = 0.999) -> Callable[[int, np.ndarray], np.ndarray]:
    """The deviation that noise alone causes with probability 5%; without noise Adam's eps, squared."""
    return lambda t, phi: np.maximum(adam_family.proposition_3(t, beta2, 0.05) * phi, 1e-16)


SETUPS = [
    Setup("sgd", {}, sgd_reference(), lambda p, lr: torch.optim.SGD(p, lr)),
    Setup(
        "sgd",
        {"momentum": 0.9},
        sgd_reference(mu=0.9),
        lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9),
    ),
    # torch.optim.SGD has no decoupled weight decay, so there is no parent.
    Setup("sgd", {"momentum": 0.5, "weight_decay": 0.1}, sgd_reference(mu=0.5, lam=0.1)),
    Setup("adam", {}, adam_reference(), lambda p, lr: torch.optim.Adam(p, lr)),
    Setup(
        "adam",
        {"betas": (0.5, 0.9), "eps": 1e-2},
        adam_reference(beta1=0.5, beta2=0.9, gamma=1e-2),
        lambda p, lr: torch.optim.Adam(p, lr, betas=(0.5, 0.9), eps=1e-2),
    ),
    Setup("adam", {"betas": (0.0, 0.0)}, adam_reference(beta1=0.0, beta2=0.0)),
    Setup("adam", {"eps": 1e-2, "eps_placement": "inside"}, adam_reference(gamma=1e-2, inside=True)),
    Setup(
        "adamw",
        {},
        adam_reference(lam=1e-2),
        lambda p, lr: torch.optim.AdamW(p, lr),
    ),
    Setup(
        "adamw",
        {"weight_decay": 0.3, "eps": 1e-3},
        adam_reference(lam=0.3, gamma=1e-3),
        lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.3, eps=1e-3),
    ),
    Setup(
        "adamw",
        {"weight_decay": 0.3, "eps": 1e-2, "eps_placement": "inside"},
        adam_reference(lam=0.3, gamma=1e-2, inside=True),
    ),
    Setup("adam-bc", {}, bc_reference(floor=automatic_floor())),
    Setup("adam-bc", {"floor": 1e-2}, bc_reference(floor=1e-2)),
    Setup("adam-bc", {"floor": 1e-2, "correction": 0.25}, bc_reference(floor=1e-2, correction=0.25)),
    Setup(
        "adam-bc",
        {"betas": (0.5, 0.9), "floor": "auto"},
        bc_reference(beta1=0.5, beta2=0.9, floor=automatic_floor(0.9)),
    ),
    Setup("adamw-bc", {}, bc_reference(floor=automatic_floor(), lam=1e-2)),
    Setup("adamw-bc", {"floor": 1e-2, "weight_decay": 0.3}, bc_reference(floor=1e-2, lam=0.3)),
    Setup("rmsprop", {}, rmsprop_reference(), lambda p, lr: torch.optim.RMSprop(p, lr, alpha=0.9)),
    Setup(
        "rmsprop",
        {"alpha": 0.99, "eps": 1e-3, "momentum": 0.5},
        rmsprop_reference(beta=0.99, gamma=1e-3, mu=0.5),
        lambda p, lr: torch.optim.RMSprop(p, lr, eps=1e-3, momentum=0.5),
    ),
    # Given the releases, these are SGD and Adam; what they clip in is test_geometric_rules.py's.
    Setup("adaclip", {}, sgd_reference(), lambda p, lr: torch.optim.SGD(p, lr)),
    Setup("macadam", {}, adam_reference(), lambda p, lr: torch.optim.Adam(p, lr)),
    Setup("macadam", {"kappa": "paper", "noise_correction": "paper"}, adam_reference()),
    Setup("macadam-bc", {}, bc_reference(floor=automatic_floor())),
    Setup("macadam-bc", {"floor": 1e-2}, bc_reference(floor=1e-2)),
    Setup("scale-then-privatize", {}, adam_reference(), lambda p, lr: torch.optim.Adam(p, lr)),
    Setup("scale-then-privatize", {"floor": 1e-2}, bc_reference(floor=1e-2)),
    Setup("adadps", {}, sgd_reference(), lambda p, lr: torch.optim.SGD(p, lr)),
    Setup("adadps", {"momentum": 0.5}, sgd_reference(mu=0.5)),
    Setup("dp2-rmsprop", {"period": 4, "eps": 0.1}, dp2_reference(lr2=1e-3, period=4, rho=0.9, eps=0.1)),
    Setup(
        "dp2-rmsprop", {"period": STEPS}, sgd_reference(), lambda p, lr: torch.optim.SGD(p, lr)
    ),  # the first phase
    Setup(
        "micro-adam",
        {"bits": None, "density": 0.2, "window": 4},
        micro_reference(scope="block", block_size=1 << 15, density=0.2, window=4),
    ),
    Setup(
        "micro-adam",
        {"bits": None, "density": 1.0, "window": STEPS, "weight_decay": 0.1},
        adam_reference(lam=0.1),
        lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.1),
    ),  # nothing is left out or forgotten
]

# Without noise, and with a floor that no coordinate meets, the corrected rules are Adam and AdamW.
UNCORRECTED = [
    Setup(
        "adam-bc",
        {"floor": 1e-30},
        bc_reference(floor=1e-30),
        lambda p, lr: torch.optim.Adam(p, lr, eps=0.0),
    ),
    Setup(
        "macadam-bc",
        {"floor": 1e-30},
        bc_reference(floor=1e-30),
        lambda p, lr: torch.optim.Adam(p, lr, eps=0.0),
    ),
    Setup(
        "adamw-bc",
        {"floor": 1e-30, "weight_decay": 0.3},
        bc_reference(floor=1e-30, lam=0.3),
        lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.3, eps=0.0),
    ),
]
WITH_PARENT = [setup for setup in SETUPS if setup.parent] + UNCORRECTED

# (rule or setup, test) -> why it does not hold there. The test must then fail.
EXCEPTIONS: dict[tuple[str, str], str] = {}


def over(items: Sequence[Any], argument: str) -> Callable[..., Any]:
    """Parametrises a test over rules or setups; declared exceptions are expected to fail."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        params = []
        for item in items:
            reason = EXCEPTIONS.get((str(item), test.__name__))
            marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
            params.append(pytest.param(item, id=str(item), marks=marks))
        return pytest.mark.parametrize(argument, params)(test)

    return decorate


every_rule = over(list(RULES), "name")
every_setup = over(SETUPS, "setup")


def test_every_rule_has_a_reference():
    missing = set(RULES) - {setup.rule for setup in SETUPS}
    assert not missing, f"add a Setup, with a reference under tests/reference, for {sorted(missing)}"


def test_exceptions_name_rules_and_tests_that_exist():
    known = set(RULES) | {str(setup) for setup in SETUPS}
    for name, test in EXCEPTIONS:
        assert name in known, name
        assert test in globals(), test


# --- releases -------------------------------------------------------------------------------------------

SHAPES = [(3, 4), (5,), ()]


def variances_of(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> list[np.ndarray]:
    """The noise variance of each step, as numbers or arrays."""
    by_coordinate = 0.05 + rng.random(shape)
    by_step = 0.05 + rng.random(STEPS)
    return {
        "zero": [np.float64(0)] * STEPS,
        "constant": [np.float64(0.3)] * STEPS,
        "by step": list(by_step),
        "by coordinate": [by_coordinate] * STEPS,
        "by step and coordinate": [s * (0.05 + rng.random(shape)) for s in by_step],
        # A schedule that turns the noise off and then makes it differ between coordinates.
        "changing": [np.float64(0.4)] * 15 + [np.float64(0)] * 15 + [by_coordinate] * 20,
    }[kind]


VARIANCES = ["zero", "constant", "by step", "by coordinate", "by step and coordinate", "changing"]


def as_value(variance: np.ndarray) -> Tensor | float:
    return torch.from_numpy(variance) if isinstance(variance, np.ndarray) else float(variance)


def problem(
    kind: str, seed: int = 0
) -> tuple[list[np.ndarray], list[list[np.ndarray]], list[list[np.ndarray]]]:
    """Starting points, and for each the private gradients and variances of STEPS steps."""
    rng = np.random.default_rng(seed)
    starts = [np.asarray(rng.normal(size=shape)) for shape in SHAPES]
    variances = [variances_of(kind, shape, rng) for shape in SHAPES]
    gradients = [
        [np.asarray(rng.normal(0.5, 0.3, shape) + np.sqrt(v) * rng.normal(size=shape)) for v in variance]
        for shape, variance in zip(SHAPES, variances, strict=True)
    ]
    return starts, gradients, variances


def parameters(starts: Sequence[np.ndarray], dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    return [nn.Parameter(torch.tensor(start).to(dtype)) for start in starts]


def release(
    params: Sequence[Tensor], gradients: Sequence[np.ndarray], variances: Sequence[np.ndarray]
) -> PrivateGradient:
    return PrivateGradient(
        {p: torch.tensor(g) for p, g in zip(params, gradients, strict=True)},
        {p: as_value(v) for p, v in zip(params, variances, strict=True)},
    )


def releases(params: Sequence[Tensor], kind: str = "constant", seed: int = 0) -> list[PrivateGradient]:
    _, gradients, variances = problem(kind, seed)
    steps = range(STEPS)
    return [release(params, [g[t] for g in gradients], [v[t] for v in variances]) for t in steps]


def step(rule: Rule, made: PrivateGradient) -> None:
    made.write_to(rule)
    rule.step()


def made_rule(name: str, params: Any, **options: Any) -> Rule:
    return RULES[name](params, **options)


def snapshot(rule: Rule) -> dict[str, Any]:
    state = rule.state_dict()
    params = [p.detach().clone() for group in rule.param_groups for p in group["params"]]
    return copy.deepcopy({"state": state["state"], "groups": state["param_groups"], "params": params})


def assert_same(a: Any, b: Any) -> None:
    """Bit equality of nests of tensors and numbers."""
    assert type(a) is type(b)
    if isinstance(a, Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b


# --- against the papers ---------------------------------------------------------------------------------


@every_setup
@pytest.mark.parametrize("kind", VARIANCES)
def test_fifty_noisy_steps_are_those_of_the_paper(setup, kind):
    starts, gradients, variances = problem(kind)
    params = parameters(starts)
    rates = [0.1 / (1 + 0.05 * t) for t in range(STEPS)]
    expected = [
        setup.reference(start, g, rates, v) for start, g, v in zip(starts, gradients, variances, strict=True)
    ]
    rule = setup.make(params)
    for t, made in enumerate(releases(params, kind)):
        rule.param_groups[0]["lr"] = rates[t]
        step(rule, made)
        for p, trajectory in zip(params, expected, strict=True):
            theta = trajectory[t]
            off = np.abs(p.detach().numpy() - theta).max() / np.abs(theta).max()
            assert off <= 1e-12, f"step {t + 1}: off by {off:.1e}"


@pytest.mark.parametrize("name", ["adam-bc", "adamw-bc"])
@pytest.mark.parametrize("variance", [0.3, 1e-8])
def test_a_constant_variance_is_subtracted_as_the_papers_phi(name, variance):
    # The reference takes the number itself; the rule averages it with the decay of v.
    starts, gradients, _ = problem("constant")
    params = parameters(starts)
    rule = made_rule(name, params, lr=0.1, floor=0.1 * variance)
    options = {"lam": rule.param_groups[0]["weight_decay"], "floor": 0.1 * variance}
    scale = math.sqrt(variance / 0.3)
    expected = [
        adam_family.adam_bc(start, [scale * x for x in g], [0.1] * STEPS, [variance] * STEPS, **options)
        for start, g in zip(starts, gradients, strict=True)
    ]
    for t in range(STEPS):
        step(rule, release(params, [scale * g[t] for g in gradients], [np.float64(variance)] * 3))
        for p, trajectory in zip(params, expected, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), trajectory[t], rtol=1e-11, atol=1e-12)


@over(WITH_PARENT, "setup")
def test_without_noise_a_rule_is_its_torch_parent(setup):
    starts, gradients, _ = problem("zero")
    params, twins = parameters(starts), parameters(starts)
    rule, parent = setup.make(params, lr=0.05), setup.parent(twins, 0.05)
    for t, made in enumerate(releases(params, "zero")):
        step(rule, made)
        for twin, g in zip(twins, gradients, strict=True):
            twin.grad = torch.tensor(g[t])
        parent.step()
        for p, twin in zip(params, twins, strict=True):
            torch.testing.assert_close(p, twin, rtol=1e-12, atol=1e-12)


PARENTLESS: dict[str, str] = {}  # rule -> why no torch optimizer is its parent


def test_every_rule_has_a_parent():
    missing = set(RULES) - {setup.rule for setup in WITH_PARENT} - set(PARENTLESS)
    assert not missing, f"name the torch.optim parent of {sorted(missing)}, or say why there is none"


# The corrected rules, without the decay that would hide a denominator in the update.
CORRECTED: dict[str, Callable[..., Rule]] = {
    "adam-bc": rules.AdamBC,
    "adamw-bc": functools.partial(rules.AdamWBC, weight_decay=0.0),
    "macadam-bc": rules.MacAdamBC,
    "scale-then-privatize": functools.partial(rules.ScaleThenPrivatize, floor="auto"),
}


# --- what the rules are for -----------------------------------------------------------------------------

# Arguments with which a rule must reach the bottom; Adam's steps are of size lr at first.
CONVERGENCE: dict[str, dict[str, Any]] = {"sgd": {"lr": 0.3}}


@pytest.mark.slow
@every_rule
@pytest.mark.parametrize("seed", [0, 1])
def test_noisy_quadratics_are_minimised(name, seed):
    torch.manual_seed(seed)
    d, steps, std = 30, 600, 0.3
    curvature, optimum = torch.logspace(-0.5, 0.5, d).double(), torch.randn(d).double()
    p = nn.Parameter(optimum + 2 * torch.randn(d).double().sign())
    rule = made_rule(name, [p], **({"lr": 0.03} | CONVERGENCE.get(name, {})))
    schedule = lr_scheduler.CosineAnnealingLR(rule, steps)
    for _ in range(steps):
        gradient = curvature * (p.detach() - optimum) + std * torch.randn(d)
        step(rule, PrivateGradient({p: gradient}, {p: std**2}))
        schedule.step()
    # From 2 in each coordinate to 0.15 on average. The noise alone keeps SGD near 0.05.
    assert float((p.detach() - optimum).abs().mean()) < 0.15


def noise_only(rule_of: Callable[[list[Tensor]], Rule], steps: int, d: int, phi: float) -> dict[str, Tensor]:
    """Feeds pure noise of variance phi; the last update, and the moments computed beside the rule."""
    torch.manual_seed(0)
    p = nn.Parameter(torch.zeros(d).double())
    rule = rule_of([p])
    m, v = torch.zeros(d).double(), torch.zeros(d).double()
    updates = []
    for t in range(1, steps + 1):
        g = phi**0.5 * torch.randn(d).double()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        before = p.detach().clone()
        step(rule, PrivateGradient({p: g}, {p: phi}))
        if t > steps - 1000 and t % 50 == 0:  # 0.9^50 = 0.005: nearly independent
            updates.append(p.detach() - before)
    return {"updates": torch.stack(updates), "m_hat": m / (1 - 0.9**steps), "v_hat": v / (1 - 0.999**steps)}


def test_on_noise_alone_the_second_moment_of_adam_is_the_noise_variance():
    phi = 0.04
    result = noise_only(lambda p: rules.Adam(p, lr=1.0), steps=5000, d=2000, phi=phi)
    denominator = -result["m_hat"] / result["updates"][-1]
    # One coordinate's v_hat has the standard deviation sqrt(2 (1-b2)/(1+b2)) = 3.2% of phi; the mean over
    # 2000 has 0.07%, so 0.5% is 7 standard deviations.
    assert float(denominator.square().mean()) == pytest.approx(phi, rel=5e-3)
    assert float(denominator.square().std()) == pytest.approx(phi * (0.002 / 1.999) ** 0.5, rel=0.15)


def test_on_noise_alone_the_updates_of_adam_have_the_standard_deviation_of_momentum():
    result = noise_only(lambda p: rules.Adam(p, lr=1.0), steps=5000, d=2000, phi=0.04)
    # sqrt((1-b1)/(1+b1)) = 0.2294. 20 x 2000 nearly independent values: off by 0.35%, and up to 0.1% by the
    # spread of v_hat, so 2% is 5 standard deviations: a false alarm in 10^6.
    assert float(result["updates"].std()) == pytest.approx(0.2294, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRECTED)
def test_on_noise_alone_half_of_the_corrected_coordinates_lie_on_a_small_floor(name):
    phi, floor = 0.04, 1e-6
    result = noise_only(lambda p: CORRECTED[name](p, lr=1e-9, floor=floor), steps=3000, d=2000, phi=phi)
    denominator = -1e-9 * result["m_hat"] / result["updates"][-1]
    on_floor = (denominator / floor**0.5 - 1).abs() < 1e-6
    # The skewness of v_hat puts 50.6% below its mean; the share of 2000 has a standard deviation of 1.1%.
    assert float(on_floor.double().mean()) == pytest.approx(0.506, abs=0.055)
    others = ~on_floor
    excess = result["v_hat"] - phi
    torch.testing.assert_close(denominator[others], excess[others].sqrt(), rtol=1e-5, atol=1e-9)


# --- the automatic floor --------------------------------------------------------------------------------


def floors(name: str, variances: Sequence[float], gradient: float = 1e-6) -> list[float]:
    """The denominator, squared, at each step of a gradient that is far below the noise."""
    p = nn.Parameter(torch.zeros(2).double())
    rule = CORRECTED[name]([p], lr=1.0)
    result = []
    for variance in variances:
        before = p.detach().clone()
        step(rule, PrivateGradient({p: torch.full((2,), gradient).double()}, {p: variance}))
        result.append(float(gradient / (before - p.detach())[0]) ** 2)
    return result


@pytest.mark.parametrize("name", CORRECTED)
def test_the_automatic_floor_is_the_deviation_of_the_noise_and_falls(name):
    phi = 0.25
    found = floors(name, [phi] * 300)
    expected = [theory.second_moment_deviation(t, 0.999) * phi for t in range(1, 301)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in itertools.pairwise(found))
    assert found[-1] < found[0] / 20


@pytest.mark.parametrize("variance", [0.0, torch.zeros(2).double()])
@pytest.mark.parametrize("name", CORRECTED)
def test_the_automatic_floor_is_positive_without_noise(name, variance):
    p = nn.Parameter(torch.ones(2).double())
    rule = CORRECTED[name]([p], lr=0.1)
    for _ in range(3):
        step(rule, PrivateGradient({p: torch.zeros(2).double()}, {p: variance}))
    assert p.tolist() == [1.0, 1.0]
    # And so small that it is out of the way of a gradient.
    fresh = CORRECTED[name]([p], lr=0.1)
    step(fresh, PrivateGradient({p: torch.tensor([1e-6, -1e-6]).double()}, {p: variance}))
    torch.testing.assert_close(p.detach(), torch.tensor([0.9, 1.1]).double())


def test_the_automatic_floor_follows_the_coordinates():
    p = nn.Parameter(torch.zeros(3).double())
    phi = torch.tensor([0.01, 1.0, 100.0]).double()
    rule = rules.AdamBC([p], lr=1.0)
    step(rule, PrivateGradient({p: torch.full((3,), 1e-6).double()}, {p: phi}))
    expected = 1e-6 / (theory.second_moment_deviation(1, 0.999) * phi).sqrt()
    torch.testing.assert_close(-p.detach(), expected, rtol=1e-6, atol=0)


# --- saving and resuming --------------------------------------------------------------------------------


def saved_and_loaded(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@every_setup
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["constant", "by step and coordinate", "changing"])
def test_a_resumed_rule_is_bit_equal(setup, dtype, kind):
    starts, _, _ = problem(kind)
    params = parameters(starts, dtype)
    rule = setup.make(params)
    made = releases(params, kind)
    for t in range(20):
        step(rule, made[t])
    state = saved_and_loaded(rule.state_dict())
    twins = [nn.Parameter(p.detach().clone()) for p in params]
    resumed = setup.make(twins, lr=123.0)
    resumed.load_state_dict(state)
    assert_same(snapshot(resumed), snapshot(rule))
    theirs = releases(twins, kind)
    for t in range(20, STEPS):
        step(rule, made[t])
        step(resumed, theirs[t])
        for p, twin in zip(params, twins, strict=True):
            assert torch.equal(p, twin)
    assert_same(snapshot(resumed), snapshot(rule))


@every_setup
def test_state_of_bfloat16_parameters_is_float32(setup):
    starts, _, _ = problem("constant")
    params = parameters(starts, torch.bfloat16)
    rule = setup.make(params)
    for made in releases(params)[:5]:
        step(rule, made)
    resumed = setup.make([nn.Parameter(p.detach().clone()) for p in params])
    resumed.load_state_dict(saved_and_loaded(rule.state_dict()))
    for built in (rule, resumed):
        for state in built.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.is_floating_point():
                    assert value.dtype == torch.float32, name


@every_setup
def test_a_loaded_state_shares_no_memory_with_its_source(setup):
    starts, _, _ = problem("constant")
    params, twins = parameters(starts), parameters(starts)
    rule, other = setup.make(params), setup.make(twins)
    for made in releases(params)[:3]:
        step(rule, made)
    other.load_state_dict(rule.state_dict())
    before = snapshot(rule)
    for made in releases(twins)[3:6]:
        step(other, made)
    assert_same(snapshot(rule), before)


@every_rule
def test_a_copied_rule_needs_a_release_of_its_own(name):
    p = nn.Parameter(torch.zeros(2).double())
    rule = made_rule(name, [p])
    PrivateGradient({p: torch.ones(2).double()}, {p: 0.1}).write_to(rule)
    twin = copy.deepcopy(rule)
    with pytest.raises(RuntimeError, match="release"):
        twin.step()


# --- as a torch optimizer -------------------------------------------------------------------------------


@every_setup
def test_groups_have_their_own_learning_rate(setup):
    starts, _, _ = problem("constant")
    params = parameters(starts)
    first, *others = params
    rule = setup.make([{"params": [first], "lr": 0.02}, {"params": others}], lr=0.2)
    twins = parameters(starts)
    slow, fast = setup.make(twins[:1], lr=0.02), setup.make(twins[1:], lr=0.2)
    _, gradients, variances = problem("constant")
    for t in range(10):
        g, v = [x[t] for x in gradients], [x[t] for x in variances]
        step(rule, release(params, g, v))
        step(slow, release(twins[:1], g[:1], v[:1]))
        step(fast, release(twins[1:], g[1:], v[1:]))
    for p, twin in zip(params, twins, strict=True):
        assert torch.equal(p, twin)


@every_rule
def test_named_parameters_and_generators_are_accepted(name):
    model = nn.Linear(2, 2)
    assert len(made_rule(name, model.parameters()).trainable()) == 2
    assert len(made_rule(name, model.named_parameters()).trainable()) == 2


@every_rule
def test_an_added_group_starts_afresh(name):
    starts, gradients, variances = problem("constant")
    params = parameters(starts)
    rule = made_rule(name, params[:1], lr=0.1)
    for t in range(5):
        step(rule, release(params[:1], [gradients[0][t]], [variances[0][t]]))
    rule.add_param_group({"params": params[1:], "lr": 0.01})
    with pytest.raises(ValueError, match="release"):
        release(params[:1], [gradients[0][5]], [variances[0][5]]).write_to(rule)
    twins = parameters(starts)
    fresh = made_rule(name, twins[1:], lr=0.01)
    for t in range(5):
        g, v = [x[t] for x in gradients], [x[t] for x in variances]
        step(rule, release(params, g, v))
        step(fresh, release(twins[1:], g[1:], v[1:]))
    for p, twin in zip(params[1:], twins[1:], strict=True):
        assert torch.equal(p, twin)


SCHEDULERS = {
    "cosine": lambda rule: lr_scheduler.CosineAnnealingLR(rule, T_max=STEPS),
    "one cycle": lambda rule: lr_scheduler.OneCycleLR(
        rule, max_lr=0.3, total_steps=STEPS + 1, cycle_momentum=False
    ),
    "steps": lambda rule: lr_scheduler.StepLR(rule, 7, gamma=0.5),
    "warm-up": lambda rule: lr_scheduler.LambdaLR(rule, lambda t: min(1.0, (t + 1) / 10)),
    "sequence": lambda rule: lr_scheduler.SequentialLR(
        rule,
        [lr_scheduler.LinearLR(rule, 0.1, total_iters=5), lr_scheduler.ExponentialLR(rule, 0.9)],
        milestones=[5],
    ),
}


@every_setup
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_schedulers_set_the_learning_rate_of_each_step(setup, scheduler):
    starts, gradients, variances = problem("constant")
    params = parameters(starts)
    rule = setup.make(params)
    schedule = SCHEDULERS[scheduler](rule)
    rates = []
    for made in releases(params):
        rates.append(rule.param_groups[0]["lr"])
        step(rule, made)
        schedule.step()
    assert len(set(rates)) > 3
    for p, start, g, v in zip(params, starts, gradients, variances, strict=True):
        theta = setup.reference(start, g, rates, v)[-1]
        np.testing.assert_allclose(p.detach().numpy(), theta, rtol=1e-11, atol=1e-11)


@every_rule
def test_one_cycle_moves_the_momentum(name):
    starts, _, _ = problem("constant")
    params = parameters(starts)
    rule = made_rule(name, params, lr=0.01)
    schedule = lr_scheduler.OneCycleLR(rule, max_lr=0.1, total_steps=STEPS + 1)
    momenta = set()
    for made in releases(params):
        group = rule.param_groups[0]
        momenta.add(group["betas"][0] if "betas" in group else group["momentum"])
        step(rule, made)
        schedule.step()
    assert len(momenta) > 10
    assert all(p.isfinite().all() for p in params)


@every_rule
def test_frozen_parameters_stay(name):
    starts, gradients, variances = problem("constant")
    params = parameters(starts)
    params[1].requires_grad_(False)
    rule = made_rule(name, params, lr=0.1)
    active = [params[0], params[2]]
    assert rule.trainable() == active
    assert set(rule.geometry().scale) == set(active)
    for t in range(3):
        step(rule, release(active, [gradients[i][t] for i in (0, 2)], [variances[i][t] for i in (0, 2)]))
    assert torch.equal(params[1], torch.tensor(starts[1]))
    assert params[1] not in rule.state
    assert not torch.equal(params[0], torch.tensor(starts[0]))


@every_setup
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_scalar_and_empty_parameters(setup, dtype):
    scalar, empty = nn.Parameter(torch.tensor(1.0, dtype=dtype)), nn.Parameter(torch.zeros(0, 3, dtype=dtype))
    rule = setup.make([scalar, empty])
    for variance in (0.1, 0.0):
        for like in (float, lambda v: torch.tensor(v, dtype=torch.float32)):
            step(
                rule,
                PrivateGradient(
                    {scalar: torch.tensor(0.5), empty: torch.zeros(0, 3)},
                    {scalar: like(variance), empty: like(variance)},
                ),
            )
    assert scalar.shape == ()
    assert scalar.isfinite()
    assert scalar.item() < 1
    assert empty.shape == (0, 3)


@every_rule
def test_variance_per_coordinate_of_an_empty_parameter(name):
    empty = nn.Parameter(torch.zeros(0, 3))
    rule = made_rule(name, [empty])
    step(rule, PrivateGradient({empty: torch.zeros(0, 3)}, {empty: torch.zeros(0, 3)}))
    assert empty.shape == (0, 3)


@every_rule
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_zero_gradient_without_noise_moves_nothing(name, dtype):
    assert moved_by_zeros(name, dtype) == [0.0, 0.0]


@every_rule
def test_a_zero_gradient_moves_no_float16_parameter(name):
    assert moved_by_zeros(name, torch.float16) == [0.0, 0.0]


def moved_by_zeros(name: str, dtype: torch.dtype) -> list[float]:
    p = nn.Parameter(torch.zeros(2, dtype=dtype))
    rule = made_rule(name, [p], lr=0.1)
    for _ in range(3):
        step(rule, PrivateGradient({p: torch.zeros(2)}, {p: 0.0}))
    return p.tolist()


@every_rule
@pytest.mark.parametrize("kind", ["transposed", "expanded"])
def test_a_gradient_may_have_any_strides(name, kind):
    starts = [np.arange(12.0).reshape(3, 4)]
    (p,), (twin,) = parameters(starts), parameters(starts)
    rule, other = made_rule(name, [p], lr=0.1), made_rule(name, [twin], lr=0.1)
    for scale in (1.0, 2.0, 3.0):
        base = torch.arange(12.0).double().reshape(4, 3) - 5.5
        g = scale * (base.t() if kind == "transposed" else torch.tensor([[1.0], [-2.0], [3.0]]).expand(3, 4))
        g = g.expand(3, 4) if kind == "expanded" else g
        step(rule, PrivateGradient({p: g.double()}, {p: 0.1}))
        step(other, PrivateGradient({twin: g.double().contiguous()}, {twin: 0.1}))
    torch.testing.assert_close(p, twin, rtol=1e-12, atol=1e-12)


@every_rule
def test_a_variance_may_change_its_kind(name):
    p, twin = nn.Parameter(torch.zeros(3).double()), nn.Parameter(torch.zeros(3).double())
    rule, other = made_rule(name, [p]), made_rule(name, [twin])
    for variance in (torch.tensor(0.2, dtype=torch.float64), torch.full((3,), 0.2, dtype=torch.float64), 0.2):
        step(rule, PrivateGradient({p: torch.ones(3).double()}, {p: variance}))
        step(other, PrivateGradient({twin: torch.ones(3).double()}, {twin: 0.2}))
    torch.testing.assert_close(p, twin, rtol=1e-12, atol=1e-12)


@every_rule
def test_the_state_of_another_rule_is_refused(name):
    p = nn.Parameter(torch.zeros(2).double())
    rule = made_rule(name, [p])
    step(rule, PrivateGradient({p: torch.ones(2).double()}, {p: 0.1}))
    before = snapshot(rule)
    for other in RULES:
        if other != name:
            with pytest.raises(ValueError, match=RULES[other].__name__):
                rule.load_state_dict(made_rule(other, [nn.Parameter(torch.zeros(2))]).state_dict())
    assert_same(snapshot(rule), before)


@every_rule
def test_an_option_that_the_rule_does_not_have_is_refused_in_a_group(name):
    p = nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match="learning_rate"):
        made_rule(name, [{"params": [p], "learning_rate": 0.1}])
    with pytest.raises(ValueError, match="amsgrad"):
        made_rule(name, [{"params": [p], "lr": 0.1, "amsgrad": True}])
    assert len(made_rule(name, [{"params": [p], "lr": 0.1, "initial_lr": 0.1}]).param_groups) == 1


# --- a step needs a release -----------------------------------------------------------------------------


@pytest.fixture(params=list(RULES))
def running(request):
    """A rule after two steps, its parameter and a third release."""
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(4).double())
    rule = made_rule(request.param, [p])
    made = [PrivateGradient({p: torch.randn(4).double()}, {p: 0.1}) for _ in range(3)]
    for first in made[:2]:
        step(rule, first)
    return rule, p, made[2]


def test_a_step_before_any_release_is_refused():
    for rule in RULES.values():
        p = nn.Parameter(torch.zeros(2))
        p.grad = torch.ones(2)  # as loss.backward() would leave it
        with pytest.raises(RuntimeError, match="release"):
            rule([p]).step()
        assert p.tolist() == [0.0, 0.0]


def test_a_second_step_on_one_release_is_refused_and_changes_nothing(running):
    rule, _, made = running
    step(rule, made)
    before = snapshot(rule)
    with pytest.raises(RuntimeError, match="release"):
        rule.step()
    assert_same(snapshot(rule), before)


def test_a_step_after_zero_grad_is_refused_and_changes_nothing(running):
    rule, _, made = running
    made.write_to(rule)
    rule.zero_grad()
    before = snapshot(rule)
    with pytest.raises(RuntimeError, match="zero_grad"):
        rule.step()
    assert_same(snapshot(rule), before)
    step(rule, made)  # as the message says


@every_rule
def test_a_step_on_a_release_with_a_raw_gradient_added_to_it_is_refused(name):
    p = nn.Parameter(torch.ones(2).double())
    rule = made_rule(name, [p])
    PrivateGradient({p: torch.ones(2).double()}, {p: 0.1}).write_to(rule)
    p.square().sum().backward()  # the habit of another loop
    with pytest.raises(RuntimeError, match="release"):
        rule.step()
    assert p.tolist() == [1.0, 1.0]


def test_zero_grad_before_the_release_is_harmless(running):
    rule, p, made = running
    before = p.detach().clone()
    rule.zero_grad()
    step(rule, made)
    assert not torch.equal(p, before)


def test_a_closure_is_refused_and_the_release_stays_usable(running):
    rule, _, made = running
    made.write_to(rule)
    before = snapshot(rule)
    with pytest.raises(TypeError, match="closure"):
        rule.step(lambda: 0.0)
    assert_same(snapshot(rule), before)
    rule.step()


def test_a_release_for_other_parameters_is_refused(running):
    rule, p, made = running
    other = nn.Parameter(torch.zeros(4).double())
    before, gradient = snapshot(rule), p.grad
    mean, variance = dict(made.mean), dict(made.noise_variance)
    for wrong in (
        PrivateGradient({other: mean[p]}, {other: 0.1}),
        PrivateGradient(mean | {other: mean[p]}, variance | {other: 0.1}),
        PrivateGradient({}, {}),
    ):
        with pytest.raises(ValueError, match="release"):
            wrong.write_to(rule)
        with pytest.raises(RuntimeError, match="release"):
            rule.step()
    assert other.grad is None
    assert p.grad is gradient
    assert_same(snapshot(rule), before)


def test_a_rule_does_not_change_the_release(running):
    rule, p, made = running
    mean = made.mean[p].clone()
    step(rule, made)
    assert torch.equal(made.mean[p], mean)


# --- hyperparameters ------------------------------------------------------------------------------------

# For each argument, values that make no sense, and in `GOOD` ones at the edge that do.
BAD: dict[str, list[Any]] = {
    "lr": [-1e-3, NAN, INF, "fast", None, True],
    "momentum": [-0.1, 1.0, NAN, "heavy", None],
    "weight_decay": [-1e-3, NAN, INF, None],
    "betas": [(1.0, 0.9), (0.9, 1.0), (-0.1, 0.9), (0.9, NAN), (0.9,), 0.9, "ab", None],
    "eps": [-1e-8, NAN, INF, "small"],
    "eps_placement": ["under", None],
    "alpha": [-0.1, 1.0, NAN, None],
    "density": [0, -0.1, 1.5, NAN, None],
    "window": [0, -1, 1.5, None],
    "bits": [8, 0, "4", True],
    "bucket_size": [0, -1, 1.5, None],
    "rounding": ["up", None],
    "scope": ["layer", None],
    "window_correction": ["yes", None, 1],
    "h1": [0, -1.0, 1e-60, NAN, 1.0, None],  # 1.0 is above the default of h2
    "h2": [0, -1.0, NAN, 1e-12, None],
    "b0": [0, -1.0, NAN, "auto"],
    "kappa": ["right", None],
    "noise_correction": ["off", None],
    "phi": ["none", None],
    "scale_eps": [0, -1.0, NAN, None],
    "lr2": [-1e-3, NAN, INF, None],
    "period": [0, -1, 1.5, None],
    "clip_ratio": [0, -1.0, NAN, INF, None],
    "decay": [-0.1, 1.0, NAN, None],
    "preconditioner": [{nn.Parameter(torch.zeros(1)): torch.ones(1)}],  # of another model
    "floor": [0, 0.0, -1e-8, NAN, INF, "foo", None, True],
    "correction": [0.5, -1.0, NAN, INF, None],  # the default floor is made for 1
}
GOOD: dict[str, list[Any]] = {
    "lr": [0.0, 1],
    "momentum": [0.0, 0.99],
    "weight_decay": [0.0],
    "betas": [(0.0, 0.0), [0.9, 0.99]],
    "eps": [0.0],
    "eps_placement": ["inside", "outside"],
    "alpha": [0.0, 0.999],
    "density": [1, 1e-9],
    "window": [1, 1000],
    "bits": [4, None],
    "bucket_size": [1, 100_000],
    "rounding": ["nearest", "stochastic"],
    "scope": ["block", "tensor", "global"],
    "window_correction": [True, False],
    "h1": [1e-6, 2e-38],
    "h2": [1e-9, 1.0],
    "b0": [None, 1e-6, 1],
    "kappa": ["exact", "paper"],
    "noise_correction": ["tracked", "paper"],
    "phi": ["exact", "paper"],
    "scale_eps": [1e-9, 1],
    "lr2": [0.0, 1],
    "period": [1, 10**6],
    "clip_ratio": [1e-3, 10],
    "decay": [0.0, 0.99],
    "preconditioner": [None, {}],
    "floor": ["auto", 1e-12, 1],
    "correction": [1],
}


# (rule, argument, repr of the value) that is good although it is in BAD, or bad although it is in GOOD.
OTHERWISE = {
    ("scale-then-privatize", "floor", "None"): "no correction",
    ("adadps", "eps", "0.0"): "the scale must be positive",
    ("dp2-rmsprop", "eps", "0.0"): "the scale must be positive",
    ("macadam", "betas", "(0.0, 0.0)"): "no spread to estimate",
    ("macadam-bc", "betas", "(0.0, 0.0)"): "no spread to estimate",
}


def values(table: dict[str, list[Any]], name: str, argument: str) -> list[Any]:
    return [value for value in table.get(argument, []) if (name, argument, repr(value)) not in OTHERWISE]


def arguments(name: str) -> list[str]:
    return [argument for argument in inspect.signature(RULES[name]).parameters if argument != "params"]


ARGUMENTS = [(name, argument) for name in RULES for argument in arguments(name)]


def test_every_argument_of_every_rule_has_bad_values():
    missing = {argument for _, argument in ARGUMENTS} - (BAD.keys() & GOOD.keys())
    assert not missing, f"add values to BAD and GOOD for {sorted(missing)}"


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [(name, argument, value) for name, argument in ARGUMENTS for value in values(BAD, name, argument)],
)
def test_a_bad_hyperparameter_is_refused_by_name(name, argument, value):
    with pytest.raises((ValueError, TypeError), match=argument):
        made_rule(name, [nn.Parameter(torch.zeros(1))], **{argument: value})


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [(name, argument, value) for name, argument in ARGUMENTS for value in values(GOOD, name, argument)],
)
def test_hyperparameters_at_the_edge_are_accepted(name, argument, value):
    p = nn.Parameter(torch.ones(2).double())
    rule = made_rule(name, [p], **{argument: value})
    step(rule, PrivateGradient({p: torch.ones(2).double()}, {p: 0.1}))
    assert p.isfinite().all()


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        (name, argument, values(BAD, name, argument)[0])
        for name, argument in ARGUMENTS
        if argument != "preconditioner"  # of the rule, not of a group
    ],
)
def test_a_bad_hyperparameter_of_a_group_is_refused_by_name_and_nothing_changes(name, argument, value):
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    with pytest.raises((ValueError, TypeError), match=argument):
        made_rule(name, [{"params": [first]}, {"params": [second], argument: value}])
    rule = made_rule(name, [first])
    with pytest.raises((ValueError, TypeError), match=argument):
        rule.add_param_group({"params": [second], argument: value})
    assert len(rule.param_groups) == 1


@every_rule
def test_a_group_without_parameters_is_refused(name):
    first = nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match="params"):
        made_rule(name, [{"params": [first]}, {"params": []}])
    rule = made_rule(name, [first])
    with pytest.raises(ValueError, match="params"):
        rule.add_param_group({"params": []})
    assert len(rule.param_groups) == 1


@every_rule
def test_no_parameters_are_refused(name):
    with pytest.raises(ValueError, match="empty parameter list"):
        made_rule(name, [])
