r"""The arithmetic that Adam, AdamW and their bias-corrected forms share.

.. math::
    m_t         &= \beta_1 m_{t-1} + (1-\beta_1)\tilde g_t                      \qquad (1) \\
    v_t         &= \beta_2 v_{t-1} + (1-\beta_2)\tilde g_t^2                    \qquad (2) \\
    \phi_t      &= \beta_2 \phi_{t-1} + (1-\beta_2)\,\mathrm{Var}(\tilde g_t)   \qquad (3) \\
    \hat m_t    &= m_t/(1-\beta_1^t), \quad
    \hat v_t     = v_t/(1-\beta_2^t), \quad
    \hat\phi_t   = \phi_t/(1-\beta_2^t)                                         \qquad (4) \\
    D_t         &= \sqrt{\hat v_t} + \gamma
                   \;\text{ or }\; \sqrt{\max(\hat v_t - \hat\phi_t, \gamma')}  \qquad (5) \\
    \theta_t    &= (1 - \eta\lambda)\theta_{t-1} - \eta\,\hat m_t / D_t         \qquad (6)
"""

from typing import Any

import torch
from torch import Tensor

from adamas import _validate
from adamas._numerics import accumulation_dtype
from adamas.geometry import Value
from adamas.rules.base import Rule
from adamas.theory import second_moment_deviation

_EPS_PLACEMENTS = ("outside", "inside")

# The automatic floor without noise: Adam's eps = 1e-8, which stands outside the root, squared.
_LEAST_FLOOR = 1e-16


class AdamFamily(Rule):
    """A group with a `floor` has the noise's share subtracted; one without is plain Adam."""

    def _update(
        self,
        p: Tensor,
        gradient: Tensor,
        noise_variance: Value,
        group: dict[str, Any],
        state: dict[str, Any],
    ) -> None:
        if not state:
            dtype = accumulation_dtype(p.dtype)
            state["step"] = 0
            state["m"] = torch.zeros_like(p, dtype=dtype)
            state["v"] = torch.zeros_like(p, dtype=dtype)
        b1, b2 = group["betas"]
        m, v = state["m"], state["v"]
        g = gradient.to(m.dtype)
        state["step"] += 1
        m.lerp_(g, 1 - b1)  # (1)
        v.mul_(b2).addcmul_(g, g, value=1 - b2)  # (2)
        if "floor" in group:
            denominator = _corrected_denominator(v, noise_variance, group, state)
        else:
            denominator = _plain_denominator(v, group, state)
        p.mul_(1 - group["lr"] * group["weight_decay"])
        step_size = group["lr"] / (1 - b1 ** state["step"])
        p.add_(torch.div(m, denominator, out=denominator), alpha=-step_size)  # (6)


def _plain_denominator(v: Tensor, group: dict[str, Any], state: dict[str, Any]) -> Tensor:
    """Equation (5), left: Adam's own."""
    correction = 1 - group["betas"][1] ** state["step"]
    v_hat: Tensor = v / correction  # (4)
    if group["eps_placement"] == "inside":
        return v_hat.add_(group["eps"]).sqrt_()  # (5)
    return v_hat.sqrt_().add_(group["eps"])  # (5)


def _corrected_denominator(
    v: Tensor, noise_variance: Value, group: dict[str, Any], state: dict[str, Any]
) -> Tensor:
    """Equation (5), right: without the noise's share of the second moment, and with a floor."""
    b2 = group["betas"][1]
    correction = 1 - b2 ** state["step"]
    phi = b2 * state.get("phi", 0.0) + (1 - b2) * noise_variance  # (3)
    state["phi"] = phi
    phi_hat = phi / correction  # (4)
    if group["floor"] == "auto":
        deviation = second_moment_deviation(state["step"], b2)
        floor = deviation * phi_hat
        floor = floor.clamp(min=_LEAST_FLOOR) if isinstance(floor, Tensor) else max(floor, _LEAST_FLOOR)
    else:
        floor = group["floor"]
    v_hat: Tensor = v / correction  # (4)
    return v_hat.sub_(phi_hat).clamp_(min=floor).sqrt_()  # (5)


def check_common(lr: float, betas: tuple[float, float], weight_decay: float = 0.0) -> dict[str, Any]:
    """The hyperparameters that all of the family have, checked."""
    _validate.non_negative(lr=lr, weight_decay=weight_decay)
    _validate.decays(betas=betas)
    return {"lr": lr, "betas": betas, "weight_decay": weight_decay}


def check_eps(eps: float, eps_placement: str) -> dict[str, Any]:
    """The hyperparameters of equation (5), left, checked."""
    _validate.non_negative(eps=eps)
    _validate.one_of(_EPS_PLACEMENTS, eps_placement=eps_placement)
    return {"eps": eps, "eps_placement": eps_placement}


def check_floor(floor: float | str) -> dict[str, Any]:
    """The hyperparameter of equation (5), right, checked."""
    if isinstance(floor, str):
        if floor != "auto":
            raise ValueError(f"Expected floor={floor!r} to be 'auto' or a number > 0.")
    else:
        _validate.positive(floor=floor)
    return {"floor": floor}
