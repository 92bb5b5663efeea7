"""Every rule of RULES with options, its reference implementation and the torch optimizer that it extends.

The reference is a function (theta_0, gradients, learning rates, noise variances) -> theta_1, ..., theta_T.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from adamas.rules import RULES, Rule
from tests.reference import adam_family, micro_adam, rmsprop, sgd
from tests.support.rule_steps import STEPS


@dataclass(frozen=True)
class Setup:
    """A rule with options, and what its steps must equal.

    Attributes:
        rule: Name in RULES.
        options: Arguments of the rule, without lr.
        reference: The paper's pseudo-code with the same options.
        parent: Makes the torch optimizer that the rule equals without noise, from parameters and lr.
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
    """The deviation of v that noise exceeds with probability 5%; without noise, the square of Adam's eps."""
    return lambda t, phi: np.maximum(adam_family.proposition_3(t, beta2, 0.05) * phi, 1e-16)


SETUPS = [
    Setup("sgd", {}, sgd_reference(), lambda p, lr: torch.optim.SGD(p, lr)),
    Setup(
        "sgd",
        {"momentum": 0.9},
        sgd_reference(mu=0.9),
        lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9),
    ),
    # No parent: torch.optim.SGD has no decoupled weight decay.
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
    # Given the releases, these are SGD and Adam. test_geometric_rules.py tests their geometry.
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
    # All steps are in the first phase.
    Setup("dp2-rmsprop", {"period": STEPS}, sgd_reference(), lambda p, lr: torch.optim.SGD(p, lr)),
    Setup(
        "micro-adam",
        {"bits": None, "density": 0.2, "window": 4},
        micro_reference(scope="block", block_size=1 << 15, density=0.2, window=4),
    ),
    # Every entry is selected, and the window holds every step.
    Setup(
        "micro-adam",
        {"bits": None, "density": 1.0, "window": STEPS, "weight_decay": 0.1},
        adam_reference(lam=0.1),
        lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.1),
    ),
]
# Without noise, and with a floor below every coordinate, the corrected rules are Adam and AdamW.
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

every_rule = pytest.mark.parametrize("name", RULES)
every_setup = pytest.mark.parametrize("setup", SETUPS, ids=str)
