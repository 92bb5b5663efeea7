"""The rules that shape the clipping: against their papers, through the door, and against simulations."""

import copy
import io
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adamas import PrivateGradient, rules
from adamas.engines.stacked import Stacked
from adamas.noise import GaussianNoise
from adamas.privatize import privatize
from adamas.rules import Rule
from tests.reference import adaclip, adadps, dp2_rmsprop, macadam, rmsprop, scale_then_privatize

STEPS = 50
BATCH = 6.0
CLIP = 0.7
SHAPES = [(3, 4), (5,), ()]
D = 18
RATES = [0.1 / (1 + 0.05 * t) for t in range(STEPS)]


# --- the rules and their references ---------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """A rule with options, and the reference of the same algorithm.

    Attributes:
        rule: The class's name.
        options: Arguments, without lr; `preconditioner` is a flat vector here.
        reference: The function of tests/reference.
        expected: Its options.
        clip_norm: What the geometry is scaled by; the algorithms without a clip norm have 1.
        public: The mean public gradients that the rule observes before a step, by its number from 1.
    """

    rule: str
    options: dict[str, Any]
    reference: Callable[..., list[tuple[np.ndarray, ...]]]
    expected: dict[str, Any]
    clip_norm: float = 1.0
    public: Mapping[int, np.ndarray] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = {name: value for name, value in self.options.items() if name != "preconditioner"}
        if "preconditioner" in self.options:
            shown["preconditioner"] = "given"
        if self.public:
            shown["public"] = "observed"
        return " ".join([self.rule, *(f"{name}={value}" for name, value in shown.items())])

    def make(self, params: Sequence[Tensor], lr: float = RATES[0], groups: bool = False) -> Rule:
        options = dict(self.options)
        if "preconditioner" in options:
            options["preconditioner"] = dict(zip(params, tensors(options["preconditioner"]), strict=True))
        given = [{"params": [p]} for p in params] if groups else params
        return getattr(rules, self.rule)(given, lr=lr, **options)

    def run(self, problem: "Problem", sigma: float) -> list[tuple[np.ndarray, ...]]:
        """theta_t, release, center and scale of each step."""
        return self.reference(
            problem.theta, problem.examples, problem.xi, RATES, sigma=sigma, batch_size=BATCH, **self.expected
        )


def adaclip_setup(**options: Any) -> Setup:
    expected = dict(options)
    if "betas" in expected:
        expected["beta1"], expected["beta2"] = expected.pop("betas")
    return Setup("AdaClip", options, adaclip.adaclip, expected)


def macadam_setup(rule: str, **options: Any) -> Setup:
    expected = options | {"corrected": rule == "MacAdamBC"}
    if "betas" in expected:
        expected["beta1"], expected["beta2"] = expected.pop("betas")
    if "eps" in expected:
        expected["gamma"] = expected.pop("eps")
    if expected.get("floor") == "auto":
        expected["floor"] = None
    return Setup(rule, options, macadam.macadam, expected)


def scaled_setup(**options: Any) -> Setup:
    floor = options.get("floor")
    expected = {
        "clip_norm": CLIP,
        "corrected": floor is not None,
        "floor": None if floor == "auto" else floor,
        "scale_eps": options.get("scale_eps", 1e-2),
        "gamma": options.get("eps", 1e-8),
    }
    expected["beta1"], expected["beta2"] = options.get("betas", (0.9, 0.999))
    return Setup(
        "ScaleThenPrivatize", options, scale_then_privatize.scale_then_privatize, expected, clip_norm=CLIP
    )


def adadps_setup(public: Mapping[int, np.ndarray] | None = None, **options: Any) -> Setup:
    names = {"decay": "beta", "momentum": "mu", "preconditioner": "side_information"}
    expected = {names.get(name, name): value for name, value in options.items()}
    expected |= {"clip_norm": CLIP, "public": public}
    return Setup("AdaDPS", options, adadps.adadps, expected, clip_norm=CLIP, public=public or {})


def dp2_setup(**options: Any) -> Setup:
    expected = {("rho" if name == "decay" else name): value for name, value in options.items()}
    return Setup("DP2RMSProp", options, dp2_rmsprop.dp2_rmsprop, expected | {"clip_norm": CLIP}, CLIP)


# Bounds between which the variances of these gradients lie, so that both and the space between are met.
WIDE = {"h1": 2e-3, "h2": 5e-2}
WAYS = [
    {"kappa": kappa, "noise_correction": correction}
    for kappa in ("exact", "paper")
    for correction in ("tracked", "paper")
]
SIDE = np.geomspace(0.1, 3.0, D)
PUBLIC = {t: np.random.default_rng(t).normal(0.3, 0.5, D) for t in (3, 4, 5, 20, 41)}

ADACLIP = [
    adaclip_setup(),
    adaclip_setup(**WIDE),
    adaclip_setup(betas=(0.8, 0.95), h1=1e-4, h2=1.0),
    adaclip_setup(b0=0.8, **WIDE),
]
MACADAM = [
    macadam_setup("MacAdam"),
    *(macadam_setup("MacAdam", **WIDE, **way) for way in WAYS),
    macadam_setup("MacAdam", b0=1.5, betas=(0.7, 0.95), eps=1e-2, **WIDE),
    macadam_setup("MacAdam", b0=0.8, betas=(0.7, 0.95), kappa="paper", noise_correction="paper", **WIDE),
]
MACADAM_BC = [
    macadam_setup("MacAdamBC"),
    *(
        macadam_setup("MacAdamBC", floor=1e-3, phi=phi, **WIDE, **way)
        for phi in ("exact", "paper")
        for way in WAYS
    ),
    macadam_setup("MacAdamBC", floor="auto", betas=(0.7, 0.95), b0=1.5, **WIDE),
    macadam_setup("MacAdamBC", floor="auto", phi="paper", b0=0.8, **WIDE),
]
SCALED = [
    scaled_setup(),
    scaled_setup(betas=(0.7, 0.95), eps=1e-2, scale_eps=0.1),
    scaled_setup(floor=1e-3),
    scaled_setup(floor="auto"),
    scaled_setup(floor="auto", betas=(0.7, 0.95), scale_eps=0.1),
]
ADADPS = [
    adadps_setup(),
    adadps_setup(preconditioner=SIDE),
    adadps_setup(public=PUBLIC),
    adadps_setup(public=PUBLIC, decay=0.5, eps=1e-2, momentum=0.6),
    adadps_setup(preconditioner=SIDE, momentum=0.6),
]
DP2 = [
    dp2_setup(lr2=1e-3, period=10),
    dp2_setup(lr2=0.03, period=1),
    dp2_setup(lr2=0.03, period=3, clip_ratio=0.5),
    dp2_setup(lr2=0.03, period=7, clip_ratio=2.0, decay=0.6, eps=1e-2),
]
SETUPS = [*ADACLIP, *MACADAM, *MACADAM_BC, *SCALED, *ADADPS, *DP2]
# One of each, for what does not depend on the options.
ONE_EACH = [ADACLIP[1], MACADAM[1], MACADAM_BC[1], SCALED[3], ADADPS[3], DP2[2]]

every_setup = pytest.mark.parametrize("setup", SETUPS, ids=str)
one_of_each = pytest.mark.parametrize("setup", ONE_EACH, ids=str)


# --- problems, and the release by its formula -----------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """A start, and for each step the examples' gradients and the standard normal values."""

    theta: np.ndarray
    examples: list[np.ndarray]
    xi: list[np.ndarray]


def problem(seed: int) -> Problem:
    """Gradients of different widths, some clipped and some not; some batches are empty."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(1.5 * BATCH, STEPS)
    counts[[7, 8, 30]] = 0
    if seed % 2:
        counts[0] = 0  # the first release is noise alone
    # The examples of a step have a direction in common, without which their mean would vary so little that
    # every variance would sink to its lower bound.
    width, center = np.geomspace(0.02, 0.6, D), rng.normal(0, 0.1, D)
    common = [rng.normal(center * math.cos(0.1 * t), width) for t in range(STEPS)]
    examples = [
        rng.lognormal(0, 1, (n, 1)) * rng.normal(common[t], 0.3 * width, (n, D)) for t, n in enumerate(counts)
    ]
    return Problem(rng.normal(size=D), examples, [rng.normal(size=D) for _ in range(STEPS)])


def tensors(flat: np.ndarray) -> list[Tensor]:
    """A flat vector in the parameters' shapes."""
    parts = torch.split(torch.tensor(flat), [math.prod(shape) for shape in SHAPES])
    return [part.reshape(shape).clone() for part, shape in zip(parts, SHAPES, strict=True)]


def parameters(flat: np.ndarray) -> list[Tensor]:
    return [nn.Parameter(part) for part in tensors(flat)]


def flat(params: Sequence[Tensor], values: Mapping[Tensor, Any] | None) -> np.ndarray:
    """A value for each coordinate; a missing one is 0."""
    values = values or {}
    parts = [
        torch.as_tensor(values.get(p, 0.0), dtype=torch.float64).expand(p.shape).flatten() for p in params
    ]
    return torch.cat(parts).numpy()


def frame(rule: Rule, params: Sequence[Tensor], clip_norm: float) -> tuple[np.ndarray, np.ndarray]:
    """The center and the scale of the next step, flat."""
    geometry = rule.geometry().scaled(clip_norm)
    return flat(params, geometry.center), flat(params, geometry.scale)


def release_of(
    rule: Rule, params: Sequence[Tensor], g: np.ndarray, xi: np.ndarray, sigma: float, clip_norm: float
) -> tuple[PrivateGradient, np.ndarray]:
    """c + s (sum_i u_i / max(1, |u_i|) + sigma xi) / B with u = (g - c) / s, as an object and flat."""
    c, s = frame(rule, params, clip_norm)
    u = (g - c) / s
    total = (u / np.maximum(1, np.linalg.norm(u, axis=1, keepdims=True))).sum(axis=0)
    mean = c + s * (total + sigma * xi) / BATCH
    shapes = [p.shape for p in params]
    sizes = [p.numel() for p in params]
    parts, variances = (
        [
            part.reshape(shape).clone()
            for part, shape in zip(torch.split(torch.tensor(x), sizes), shapes, strict=True)
        ]
        for x in (mean, (s * sigma / BATCH) ** 2)
    )
    return PrivateGradient(
        dict(zip(params, parts, strict=True)), dict(zip(params, variances, strict=True))
    ), mean


def advance(
    setup: Setup, rule: Rule, params: Sequence[Tensor], given: Problem, t: int, sigma: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Step t, counted from 0: theta, release, center and scale of it."""
    rule_lr(rule, RATES[t])
    if t + 1 in setup.public:
        rule.observe(dict(zip(params, tensors(setup.public[t + 1]), strict=True)))
    c, s = frame(rule, params, setup.clip_norm)
    release, mean = release_of(rule, params, given.examples[t], given.xi[t], sigma, setup.clip_norm)
    release.write_to(rule)
    rule.step()
    return flat(params, {p: p.detach() for p in params}), mean, c, s


def rule_lr(rule: Rule, lr: float) -> None:
    for group in rule.param_groups:
        group["lr"] = lr


def assert_near(actual: np.ndarray, expected: np.ndarray, what: str) -> None:
    """1e-10 of the largest value of each tensor."""
    for a, b in zip(tensors(actual), tensors(expected), strict=True):
        off = float((a - b).abs().max())
        assert off <= 1e-10 * float(b.abs().max()), f"{what}: off by {off:.1e} of {float(b.abs().max()):.1e}"


def follow(setup: Setup, given: Problem, sigma: float, groups: bool = False) -> None:
    expected = setup.run(given, sigma)
    params = parameters(given.theta)
    rule = setup.make(params, groups=groups)
    for t in range(STEPS):
        actual = advance(setup, rule, params, given, t, sigma)
        for name, a, b in zip(("theta", "release", "center", "scale"), actual, expected[t], strict=True):
            assert_near(a, b, f"{name} of step {t + 1}")


# --- against the papers ---------------------------------------------------------------------------------


@pytest.mark.slow
@every_setup
@pytest.mark.parametrize("sigma", [0.0, 0.4, 2.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_fifty_steps_are_those_of_the_paper(setup, sigma, seed):
    follow(setup, problem(seed), sigma)


@pytest.mark.slow
@every_setup
def test_groups_do_not_matter(setup):
    follow(setup, problem(0), 0.4, groups=True)


def test_the_setups_are_different_algorithms():
    runs = {str(setup): setup.run(problem(0), 0.4)[-1][0] for setup in SETUPS}
    assert len(runs) == len(SETUPS)
    for (one, a), (other, b) in itertools.combinations(runs.items(), 2):
        assert np.abs(a - b).max() > 1e-6, f"{one} is {other}"


@pytest.mark.parametrize("setup", [*MACADAM[1:5], *MACADAM_BC[1:9]], ids=str)
def test_the_problem_meets_both_bounds_and_the_space_between(setup):
    scales = np.array([scale for _, _, _, scale in setup.run(problem(0), 0.4)[2:]])
    variances = variance_of(scales)
    low, high = variances <= WIDE["h1"] * (1 + 1e-9), variances >= WIDE["h2"] * (1 - 1e-9)
    assert low.mean() > 0.05
    assert high.mean() > 0.05
    assert (~low & ~high).mean() > 0.2


def variance_of(b: np.ndarray) -> np.ndarray:
    """The variances from which scales came: b^2 = sqrt(s) sum sqrt(s), so sum b^2 = (sum sqrt(s))^2."""
    return (b**2 / np.sqrt((b**2).sum(axis=-1, keepdims=True))) ** 2


@pytest.mark.parametrize("options", [{}, {"alpha": 0.6, "eps": 1e-2}, {"momentum": 0.7}], ids=str)
def test_rmsprop_is_that_of_the_paper_and_of_torch(options):
    rng = np.random.default_rng(0)
    theta, gradients = rng.normal(size=D), [rng.normal(0.5, 0.3, D) for _ in range(STEPS)]
    names = {"alpha": "beta", "eps": "gamma", "momentum": "mu"}
    expected = rmsprop.rmsprop(
        theta, gradients, RATES, **{names[name]: value for name, value in options.items()}
    )
    params, twins = parameters(theta), parameters(theta)
    rule = rules.RMSProp(params, **options)
    parent = torch.optim.RMSprop(twins, **({"alpha": 0.9} | options))
    for t, g in enumerate(gradients):
        PrivateGradient(dict(zip(params, tensors(g), strict=True)), dict.fromkeys(params, 0.3)).write_to(rule)
        for twin, part in zip(twins, tensors(g), strict=True):
            twin.grad = part
        rule_lr(rule, RATES[t])
        parent.param_groups[0]["lr"] = RATES[t]
        rule.step()
        parent.step()
        assert_near(flat(params, {p: p.detach() for p in params}), expected[t], f"step {t + 1}")
        for p, twin in zip(params, twins, strict=True):
            torch.testing.assert_close(p, twin, rtol=1e-12, atol=1e-12)
    assert rules.RMSProp(params).param_groups[0]["lr"] == 1e-2


def test_dp2_in_its_first_phase_has_the_momentum_of_sgd():
    params, twins = parameters(problem(0).theta), parameters(problem(0).theta)
    rule = rules.DP2RMSProp(params, lr=0.1, period=100, momentum=0.9)
    parent = torch.optim.SGD(twins, lr=0.1, momentum=0.9)
    for t in range(20):
        g = problem(0).xi[t]
        PrivateGradient(dict(zip(params, tensors(g), strict=True)), dict.fromkeys(params, 0.3)).write_to(rule)
        for twin, part in zip(twins, tensors(g), strict=True):
            twin.grad = part
        rule.step()
        parent.step()
        for p, twin in zip(params, twins, strict=True):
            torch.testing.assert_close(p, twin, rtol=1e-12, atol=1e-12)


# --- resuming -------------------------------------------------------------------------------------------


def saved_and_loaded(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.slow
@every_setup
@pytest.mark.parametrize("stop", [1, 4, 20, 25])  # both phases of each DP2, and the step of a public gradient
def test_a_resumed_rule_is_bit_equal(setup, stop):
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
def test_asking_for_the_geometry_changes_nothing(setup):
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


# --- through the door -----------------------------------------------------------------------------------


class GivenNoise(GaussianNoise):
    """Noise with known values, in the order of the geometry's parameters."""

    def __init__(self, values: Tensor) -> None:
        super().__init__(0)
        self.values = values

    def add_normal_(self, out: Tensor, std: float = 1.0, key: tuple[int, ...] = (), scales=None) -> Tensor:
        each = std if scales is None else torch.from_numpy(scales.times(std, 0, out.numel()))
        return out.add_((self.values * each).view(out.shape))


@one_of_each
@pytest.mark.parametrize("seed", [0, 1])
def test_through_the_door_the_steps_are_those_of_the_paper(setup, seed):
    given, sigma = problem(seed), 0.4
    expected = setup.run(given, sigma)
    params = parameters(given.theta)
    rule = setup.make(params)
    sizes = [p.numel() for p in params]
    for t in range(STEPS):
        rule_lr(rule, RATES[t])
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


# --- the scale of MacAdam and AdaClip -------------------------------------------------------------------

MAKES: dict[str, Callable[..., Rule]] = {
    "MacAdam": lambda *args, **options: rules.MacAdam(*args, **options),
    "MacAdamBC": lambda *args, **options: rules.MacAdamBC(*args, **options),
}


@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize("kappa", ["exact", "paper"])
@pytest.mark.parametrize("correction", ["tracked", "paper"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_after_one_step_the_scale_of_macadam_is_the_lower_bound(name, kappa, correction, dtype):
    # 0/0 in the paper: mhat_1 = gtil_1, so u_1 = s_1 = kappa_1 = 0.
    params = [nn.Parameter(torch.randn(300, 200).to(dtype)), nn.Parameter(torch.randn(7).to(dtype))]
    rule = MAKES[name](params, h1=1e-9, h2=1e-6, kappa=kappa, noise_correction=correction)
    d = 60_007
    for p in params:
        torch.testing.assert_close(
            torch.as_tensor(rule.geometry().scale[p]).double().expand(p.shape),
            torch.full(p.shape, 1 / d).double(),
            rtol=1e-6,
            atol=0,
        )
    PrivateGradient({p: torch.randn_like(p) for p in params}, dict.fromkeys(params, 1e-4)).write_to(rule)
    rule.step()
    for p in params:
        assert p.isfinite().all()
        expected = torch.full(p.shape, math.sqrt(d * 1e-9)).double()
        scale = torch.as_tensor(rule.geometry().scale[p]).double().expand(p.shape)
        torch.testing.assert_close(scale, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("setup", [*MACADAM, *MACADAM_BC], ids=str)
def test_the_first_scale_is_b0_and_the_others_lie_between_their_bounds(setup):
    given = problem(0)
    params = parameters(given.theta)
    rule = setup.make(params)
    _, first = frame(rule, params, 1.0)
    np.testing.assert_allclose(first, setup.options.get("b0", 1 / D), rtol=1e-14)
    low = math.sqrt(D * setup.options.get("h1", 1e-9))
    high = math.sqrt(D * setup.options.get("h2", 1e-6))
    for t in range(STEPS):
        advance(setup, rule, params, given, t, 2.0)
        _, b = frame(rule, params, 1.0)
        assert (b >= low * (1 - 1e-12)).all()
        assert (b <= high * (1 + 1e-12)).all()


def test_the_first_scale_of_adaclip_is_that_of_the_mean_variance_or_b0():
    params = parameters(np.zeros(D))
    _, first = frame(rules.AdaClip(params, h1=1e-8, h2=1e-4), params, 1.0)
    np.testing.assert_allclose(first, math.sqrt(1e-6 * D), rtol=1e-14)  # s^2 = 1e-6, b^2 = s sum(s)
    _, first = frame(rules.AdaClip(params, b0=0.3), params, 1.0)
    np.testing.assert_allclose(first, 0.3, rtol=1e-14)


@pytest.mark.parametrize("name", ["MacAdam", "MacAdamBC", "AdaClip"])
def test_the_sum_of_the_scale_runs_over_all_trainable_tensors_of_all_groups(name):
    generator = torch.Generator().manual_seed(0)
    sizes = [40, 3, 100]
    values = [torch.randn(20, size, generator=generator).double() for size in sizes]
    frozen = nn.Parameter(torch.zeros(1000).double(), requires_grad=False)
    params = [nn.Parameter(torch.zeros(size).double()) for size in sizes]
    whole = nn.Parameter(torch.zeros(143).double())
    options = {"h1": 1e-4, "h2": 4.0}
    rule = getattr(rules, name)(
        [{"params": [params[0], frozen], "lr": 0.1}, {"params": params[1:], "lr": 0.2}], **options
    )
    single = getattr(rules, name)([whole], lr=0.1, **options)
    for t in range(20):
        PrivateGradient(
            {p: value[t] for p, value in zip(params, values, strict=True)}, dict.fromkeys(params, 0.1)
        ).write_to(rule)
        PrivateGradient({whole: torch.cat([value[t] for value in values])}, {whole: 0.1}).write_to(single)
        rule.step()
        single.step()
        together = torch.as_tensor(single.geometry().scale[whole]).expand(whole.shape)
        geometry = rule.geometry()
        assert frozen not in geometry.scale
        apart = torch.cat([torch.as_tensor(geometry.scale[p]).expand(p.shape) for p in params])
        torch.testing.assert_close(apart, together, rtol=1e-13, atol=0)
    assert float(together.max() / together.min()) > 1.2


# --- the bias of MacAdam's variance ---------------------------------------------------------------------


def estimated_variance(kappa: str, correction: str, noise_variance: float, d: int) -> Iterator[float]:
    """The mean of MacAdam's variance estimates, for independent releases of variance 1 + noise_variance."""
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.zeros(d).double())
    rule = rules.MacAdam([p], h1=1e-30, h2=1e30, b0=1.0, kappa=kappa, noise_correction=correction)
    while True:
        g = math.sqrt(1 + noise_variance) * torch.randn(d, generator=generator, dtype=torch.float64) + 2.0
        PrivateGradient({p: g}, {p: noise_variance}).write_to(rule)
        rule.step()
        yield float(variance_of(frame(rule, [p], 1.0)[1]).mean())


def test_the_exact_kappa_makes_the_variance_unbiased_and_the_printed_one_does_not():
    d, steps = 40_000, 60
    exact = list(itertools.islice(estimated_variance("exact", "tracked", 0.0, d), steps))
    paper = list(itertools.islice(estimated_variance("paper", "paper", 0.0, d), steps))
    # The estimate of step 2 is a chi-square with one degree of freedom, of standard deviation sqrt(2), later
    # ones have less; so 5 sqrt(2/d) = 3.5% is at least 5 standard deviations, at each of 5 steps: a false
    # alarm in 3 x 10^5.
    allowed = 5 * math.sqrt(2 / d)
    for t in (2, 3, 5, 10, 60):
        assert abs(exact[t - 1] - 1) < allowed, t
        # By what the printed factor is too large: 2.11, 1.80, 1.53, 1.30 and 1.11.
        expected = macadam.exact_kappa(t, 0.9) / macadam.paper_kappa(t, 0.9)
        assert abs(paper[t - 1] - 1) > allowed, t
        assert paper[t - 1] == pytest.approx(expected, abs=allowed), t


@pytest.mark.parametrize("beta", [0.5, 0.9])
def test_the_limits_of_kappa(beta):
    assert macadam.exact_kappa(1, beta) == pytest.approx(0, abs=1e-15)
    assert macadam.exact_kappa(300, beta) == pytest.approx(2 * beta**2 / (1 + beta), rel=1e-9)
    assert macadam.paper_kappa(300, beta) == pytest.approx(2 * beta / (1 + beta), rel=1e-9)


def test_what_is_left_after_the_noise_is_the_variance_of_the_gradients():
    d = 40_000
    # A constant variance: the noise of this step is also the average one, and both corrections are right.
    # Noise of 0.05 of the gradients' variance hardly ever leaves a negative estimate, which h1 would cut off.
    for correction in ("tracked", "paper"):
        *_, last = itertools.islice(estimated_variance("exact", correction, 0.05, d), 60)
        # About 19 degrees of freedom: a standard deviation of 1.05 sqrt(2/19) = 0.34, over 200 for the mean.
        # 5 of them: a false alarm in 10^6. Without the correction it would be 1.05.
        assert abs(last - 1) < 5 * 0.34 / 200


@dataclass(frozen=True)
class NoisyStep:
    """A step on zero gradients: its scale, its noise and what came of it."""

    scale: np.ndarray
    noise: np.ndarray
    release: np.ndarray
    update: np.ndarray


def noise_only(rule: Rule, p: Tensor, sigma: float, steps: int) -> Iterator[NoisyStep]:
    """Feeds full batches of zero gradients to a rule with one vector of parameters."""
    rng = np.random.default_rng(0)
    zeros = np.zeros((int(BATCH), p.numel()))
    for _ in range(steps):
        with torch.no_grad():
            p.zero_()  # so that small updates are not rounded away beside large earlier ones
        xi = rng.normal(size=p.numel())
        _, scale = frame(rule, [p], 1.0)
        release, mean = release_of(rule, [p], zeros, xi, sigma, 1.0)
        release.write_to(rule)
        rule.step()
        yield NoisyStep(scale, scale * sigma * xi / BATCH, mean, p.detach().numpy().copy())


@pytest.mark.parametrize("correction", ["tracked", "paper"])
def test_on_noise_alone_the_tracked_scale_is_steady_and_the_printed_one_swings(correction):
    # The loop's gain is d sigma^2 / B^2 = 12.1: that of the paper's network of 795,010 at sigma = 1, B = 256.
    d, h1, h2 = 437, 1e-9, 1e-6
    p = nn.Parameter(torch.zeros(d).double())
    rule = rules.MacAdam(
        [p],
        h1=h1,
        h2=h2,
        kappa="exact" if correction == "tracked" else "paper",
        noise_correction=correction,
    )
    sizes = [np.sqrt((step.scale**2).mean()) for step in noise_only(rule, p, 1.0, 300)][100:]
    low, high = math.sqrt(d * h1), math.sqrt(d * h2)  # 31.6 times
    if correction == "tracked":
        assert max(sizes) < 1.3 * min(sizes)
        assert max(sizes) < 2 * low
    else:
        assert min(sizes) < 3 * low
        assert max(sizes) > 0.95 * high


# --- the bias of the second moment ----------------------------------------------------------------------


@dataclass(frozen=True)
class SecondMoments:
    """After some steps of noise alone, for each coordinate unless said otherwise.

    Attributes:
        v_hat: Adam's second moment, bias-corrected.
        averaged: The variances of the noise, averaged in the same way.
        denominator: The square of what the rule divided by.
        deviation: The standard deviation of mean(v_hat - averaged), one number. A scale depends on earlier
            releases only, so the summands are uncorrelated and each has the variance 2 variance_t^2.
    """

    v_hat: np.ndarray
    averaged: np.ndarray
    denominator: np.ndarray
    deviation: float


def second_moments(rule: Rule, p: Tensor, sigma: float, steps: int, beta2: float) -> SecondMoments:
    """Of a rule with lr = 1 and beta1 = 0.9."""
    m, v, averaged, spread = np.zeros((4, p.numel()))
    for step in noise_only(rule, p, sigma, steps):
        np.testing.assert_allclose(step.release, step.noise, atol=1e-12 * step.scale.max())  # nothing clipped
        variance = (step.scale * sigma / BATCH) ** 2
        m = 0.9 * m + 0.1 * step.release
        v = beta2 * v + (1 - beta2) * step.release**2
        averaged = beta2 * averaged + (1 - beta2) * variance
        spread = beta2**2 * spread + (1 - beta2) ** 2 * 2 * variance**2
    start = 1 - beta2**steps
    denominator = (m / (1 - 0.9**steps) / step.update) ** 2
    return SecondMoments(
        v / start, averaged / start, denominator, math.sqrt(spread.sum()) / start / p.numel()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bounds", "error"),
    # b^2 is near d h1: 0.002 and 20. The printed Phi is 1/b^2 of the variance of the noise.
    [((1e-6, 1e-4), -300.0), ((1e-2, 1.0), 0.9)],
    ids=["small scale", "large scale"],
)
@pytest.mark.parametrize("phi", ["exact", "paper"])
def test_on_noise_alone_the_exact_phi_leaves_nothing_and_the_printed_one_does_not(bounds, error, phi):
    d, sigma, beta2, floor = 2000, 0.1, 0.99, 1e-30
    p = nn.Parameter(torch.zeros(d).double())
    h1, h2 = bounds
    rule = rules.MacAdamBC(
        [p], lr=1.0, betas=(0.9, beta2), floor=floor, h1=h1, h2=h2, b0=math.sqrt(d * h1), phi=phi
    )
    found = second_moments(rule, p, sigma, 300, beta2)
    subtracted = found.averaged if phi == "exact" else np.full(d, (sigma / BATCH) ** 2)
    np.testing.assert_allclose(found.denominator, np.maximum(found.v_hat - subtracted, floor), rtol=1e-6)
    left = float((found.v_hat - subtracted).mean())
    if phi == "exact":
        assert abs(left) < 5 * found.deviation  # a false alarm in 10^6
        # One coordinate's v_hat has the standard deviation sqrt(2 (1-b2)/(1+b2)) = 10%, over 45 for the mean.
        assert found.deviation < 3e-3 * found.averaged.mean()
    else:
        assert abs(left) > 100 * found.deviation
        relative = left / found.averaged.mean()
        assert relative < error if error < 0 else relative > error


def test_on_noise_alone_the_corrected_scale_then_privatize_has_no_second_moment():
    d, sigma, beta2, floor = 2000, 0.15, 0.99, 1e-30
    p = nn.Parameter(torch.zeros(d).double())
    rule = rules.ScaleThenPrivatize([p], lr=1.0, betas=(0.9, beta2), floor=floor)
    found = second_moments(rule, p, sigma, 300, beta2)
    corrected = found.v_hat - found.averaged
    np.testing.assert_allclose(found.denominator, np.maximum(corrected, floor), rtol=1e-6)
    assert abs(float(corrected.mean())) < 5 * found.deviation  # a false alarm in 10^6
    # The variance of the last step's noise instead of the averaged one is off by far more.
    *_, last = noise_only(rule, p, sigma, 1)
    latest = (last.scale * sigma / BATCH) ** 2
    assert abs(float((found.v_hat - latest).mean())) > 20 * found.deviation


@pytest.mark.parametrize("floor", [None, 1e-3])
def test_the_scale_of_scale_then_privatize_is_its_denominator_plus_a_constant(floor):
    p = nn.Parameter(torch.zeros(D).double())
    rule = rules.ScaleThenPrivatize([p], lr=1.0, eps=0.0, scale_eps=0.5, floor=floor)
    m = np.zeros(D)
    np.testing.assert_array_equal(frame(rule, [p], 1.0)[1], 1.0)
    for t, step in enumerate(noise_only(rule, p, 3.0, 30), start=1):
        m = 0.9 * m + 0.1 * step.release
        denominator = -m / (1 - 0.9**t) / step.update
        np.testing.assert_allclose(frame(rule, [p], 1.0)[1], denominator + 0.5, rtol=1e-9)


# --- the phases of DP2 ----------------------------------------------------------------------------------


def test_dp2_alternates_between_sgd_and_a_preconditioner_that_is_refreshed_after_sgd():
    p = nn.Parameter(torch.zeros(4).double())
    rho, eps, ratio = 0.9, 1e-3, 0.25
    rule = rules.DP2RMSProp([p], lr=0.5, lr2=0.01, period=3, clip_ratio=ratio, decay=rho, eps=eps)
    rng = np.random.default_rng(0)
    a, pattern = np.zeros(4), []
    for _ in range(4):
        seen = []
        for phase in ("SGD", "SGD", "SGD", "RMS", "RMS", "RMS"):
            geometry = rule.geometry()
            assert not flat([p], geometry.center).any()
            g = rng.normal(size=4)
            before = p.detach().numpy().copy()
            PrivateGradient({p: torch.tensor(g)}, {p: 0.1}).write_to(rule)
            rule.step()
            scale, update = flat([p], geometry.scale), p.detach().numpy() - before
            if phase == "SGD":
                np.testing.assert_array_equal(scale, 1.0)
                np.testing.assert_allclose(update, -0.5 * g, rtol=1e-12)
                seen.append(g)
            else:
                if seen:  # averaged before it is squared
                    a, seen = rho * a + (1 - rho) * np.mean(seen, axis=0) ** 2, []
                np.testing.assert_allclose(scale, ratio * (np.sqrt(a) + eps), rtol=1e-12)
                np.testing.assert_allclose(update, -0.01 * g / (np.sqrt(a) + eps), rtol=1e-12)
            pattern.append(phase)
    assert pattern[:6] == ["SGD", "SGD", "SGD", "RMS", "RMS", "RMS"]


def test_a_schedule_moves_both_rates_of_dp2():
    p = nn.Parameter(torch.zeros(2).double())
    rule = rules.DP2RMSProp([p], lr=0.5, lr2=0.01, period=1, eps=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(rule, lambda t: 1 / (1 + t))
    for t in range(8):
        scale = flat([p], rule.geometry().scale)
        before = p.detach().numpy().copy()
        PrivateGradient({p: torch.tensor([1.0, -2.0]).double()}, {p: 0.1}).write_to(rule)
        rule.step()
        schedule.step()
        rate = (0.01 if t % 2 else 0.5) / (1 + t)
        np.testing.assert_allclose(
            p.detach().numpy() - before, -rate * np.array([1.0, -2.0]) / scale, rtol=1e-9
        )


# --- the preconditioner of AdaDPS -----------------------------------------------------------------------


def test_adadps_steps_by_the_whitened_release():
    p = nn.Parameter(torch.zeros(2).double())
    side = torch.tensor([0.1, 10.0], dtype=torch.float64)
    rule = rules.AdaDPS([p], lr=0.5, preconditioner={p: side})
    torch.testing.assert_close(torch.as_tensor(rule.geometry().scale[p]), side, rtol=0, atol=0)
    PrivateGradient({p: torch.tensor([1.0, 1.0]).double()}, {p: 0.1}).write_to(rule)
    rule.step()
    torch.testing.assert_close(
        p.detach(), torch.tensor([-5.0, -0.05], dtype=torch.float64), rtol=1e-14, atol=0
    )


def test_adadps_averages_the_squares_of_public_gradients():
    p = nn.Parameter(torch.zeros(2).double())
    rule = rules.AdaDPS([p], decay=0.9, eps=0.01)
    np.testing.assert_array_equal(flat([p], rule.geometry().scale), 1.0)
    rule.observe({p: torch.tensor([1.0, 0.0]).double()})
    np.testing.assert_allclose(flat([p], rule.geometry().scale), np.sqrt([0.11, 0.01]), rtol=1e-14)
    rule.observe({p: torch.tensor([2.0, 1.0]).double()})
    np.testing.assert_allclose(flat([p], rule.geometry().scale), np.sqrt([0.50, 0.11]), rtol=1e-14)
