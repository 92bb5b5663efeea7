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

from collections.abc import Iterator, Mapping
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

# Values of each tensor that one pass of the update holds in the cache: 5 x 256 KB of float32.
_PART = 1 << 16


class AdamFamily(Rule):
    """A group with a `floor` has the noise's share subtracted; one without is plain Adam."""

    def _update_group(
        self, params: list[Tensor], noise_variance: Mapping[Tensor, Value], group: dict[str, Any]
    ) -> None:
        if "floor" in group or group["eps_placement"] == "inside":
            super()._update_group(params, noise_variance, group)
            return
        alike: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = {}
        others = []
        for p in params:
            state = _started(self.state[p], p)
            if state["m"].dtype == p.dtype and p.is_contiguous():
                alike.setdefault((state["step"], p.dtype, p.device), []).append(p)
            else:
                others.append(p)
        for (step, _, _), members in alike.items():
            _fused(members, [self.state[p] for p in members], group, step + 1)
        super()._update_group(others, noise_variance, group)

    def _update(
        self,
        p: Tensor,
        gradient: Tensor,
        noise_variance: Value,
        group: dict[str, Any],
        state: dict[str, Any],
    ) -> None:
        _started(state, p)["step"] += 1
        m, v = state["m"], state["v"]
        phi_hat: Value = 0.0
        if "floor" in group:
            b2 = group["betas"][1]
            state["phi"] = b2 * state.get("phi", 0.0) + (1 - b2) * noise_variance  # (3)
            phi_hat = state["phi"] / (1 - b2 ** state["step"])  # (4)
        for part in _cached_parts(p, gradient, m, v, phi_hat):
            _step(*part, group, state["step"])


def _started(state: dict[str, Any], p: Tensor) -> dict[str, Any]:
    """The state of a parameter, at the first step a new one."""
    if not state:
        dtype = accumulation_dtype(p.dtype)
        state["step"] = 0
        state["m"] = torch.zeros_like(p, dtype=dtype)
        state["v"] = torch.zeros_like(p, dtype=dtype)
    return state


def _fused(params: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any], step: int) -> None:
    """Equations (1), (2), (4), (5) left and (6), by the kernel of `torch.optim.AdamW(fused=True)`."""
    b1, b2 = group["betas"]
    for state in states:
        state["step"] = step
    torch._fused_adamw_(
        params,
        [p.grad for p in params if p.grad is not None],
        [state["m"] for state in states],
        [state["v"] for state in states],
        [],
        [torch.tensor(float(step), device=params[0].device)] * len(params),
        lr=group["lr"],
        beta1=b1,
        beta2=b2,
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )


def _step(
    p: Tensor, gradient: Tensor, m: Tensor, v: Tensor, phi_hat: Value, group: dict[str, Any], step: int
) -> None:
    """Equations (1), (2) and (4) to (6) in place."""
    b1, b2 = group["betas"]
    g = gradient.to(m.dtype)
    m.lerp_(g, 1 - b1)  # (1)
    v.mul_(b2).addcmul_(g, g, value=1 - b2)  # (2)
    denominator = v / (1 - b2**step)  # (4)
    if "floor" in group:
        floor = group["floor"]
        if floor == "auto":
            floor = second_moment_deviation(step, b2) * phi_hat
            least = _LEAST_FLOOR
            floor = floor.clamp(min=least) if isinstance(floor, Tensor) else max(floor, least)
        denominator.sub_(phi_hat).clamp_(min=floor).sqrt_()  # (5), right
    elif group["eps_placement"] == "inside":
        denominator.add_(group["eps"]).sqrt_()  # (5), left, inside
    else:
        denominator.sqrt_().add_(group["eps"])  # (5), left
    p.mul_(1 - group["lr"] * group["weight_decay"])
    p.add_(torch.div(m, denominator, out=denominator), alpha=-group["lr"] / (1 - b1**step))  # (6)


def _cached_parts(
    p: Tensor, gradient: Tensor, m: Tensor, v: Tensor, phi_hat: Value
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Value]]:
    """Parts of the tensors that stay in the cache from one operation to the next."""
    n = p.numel()
    if n <= _PART or not all(t.is_contiguous() for t in (p, gradient, m, v)):
        yield p, gradient, m, v, phi_hat
        return
    flat = [t.view(-1) for t in (p, gradient, m, v)]
    for i in range(0, n, _PART):
        noise = (
            phi_hat.reshape(-1)[i : i + _PART] if isinstance(phi_hat, Tensor) and phi_hat.dim() else phi_hat
        )
        pp, gg, mm, vv = (t[i : i + _PART] for t in flat)
        yield pp, gg, mm, vv, noise


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
