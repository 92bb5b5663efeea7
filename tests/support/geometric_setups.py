"""The rules that shape the clipping, with options and their reference implementations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from adamas import rules
from adamas.rules import Rule
from tests.reference import adaclip, adadps, dp2_rmsprop, macadam, scale_then_privatize
from tests.support.geometric_steps import (
    BATCH,
    CLIP,
    RATES,
    D,
    Problem,
    flat,
    frame,
    release_of,
    set_rate,
    tensors,
)


@dataclass(frozen=True)
class Setup:
    """A rule with options, and the reference of the same algorithm.

    Attributes:
        rule: Name of the class.
        options: Arguments of the rule, without lr; `preconditioner` is a flat vector here.
        reference: Function of tests/reference.
        expected: Options of the reference.
        clip_norm: Factor of the geometry; 1 for algorithms without a clip norm.
        public: Step, counted from 1 -> mean public gradient that the rule observes before it.
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
        """Returns theta, release, center and scale of each step of the reference."""
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


# Bounds on the variances, such that some variances are at either bound and others between them.
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
# One setup of each rule, for tests that do not depend on the options.
ONE_EACH = [ADACLIP[1], MACADAM[1], MACADAM_BC[1], SCALED[3], ADADPS[3], DP2[2]]
every_setup = pytest.mark.parametrize("setup", SETUPS, ids=str)
one_of_each = pytest.mark.parametrize("setup", ONE_EACH, ids=str)


def advance(
    setup: Setup, rule: Rule, params: Sequence[Tensor], given: Problem, t: int, sigma: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Makes step t, counted from 0; returns its theta, release, center and scale."""
    set_rate(rule, RATES[t])
    if t + 1 in setup.public:
        rule.observe(dict(zip(params, tensors(setup.public[t + 1]), strict=True)))
    c, s = frame(rule, params, setup.clip_norm)
    release, mean = release_of(rule, params, given.examples[t], given.xi[t], sigma, setup.clip_norm)
    release.write_to(rule)
    rule.step()
    return flat(params, {p: p.detach() for p in params}), mean, c, s
