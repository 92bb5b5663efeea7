r"""DP-MacAdam's clipping geometry, driven by Adam's own moments.

.. math::
    u_t       &= (\tilde g_t - \hat m_t)^2                                                \qquad (7) \\
    s_t       &= \beta_1 s_{t-1} + (1-\beta_1) u_t                                        \qquad (8) \\
    n_t       &= \beta_1 n_{t-1} + (1-\beta_1)\,e_t\,\mathrm{Var}(\tilde g_t)             \qquad (9) \\
    \hat s_t  &= \mathrm{clip}_{[h_1, h_2]}\big((s_t - n_t)/\kappa_t\big)                 \qquad (10) \\
    b_t       &= \hat s_t^{1/4}\,\big(\textstyle\sum_j \hat s_{t,j}^{1/2}\big)^{1/2}      \qquad (11)

The next step clips around :math:`\hat m_t` at the scale :math:`b_t`. :math:`e_t` and :math:`\kappa_t` are
`adamas.theory.macadam_excess` and `macadam_kappa`: the means of :math:`u_t` and :math:`s_t` for independent
gradients of variance 1. (9) is exact while the scale is constant and an approximation when it changes, since
it takes the noise in :math:`\hat m_t` at the current scale.

References:
    Naima Tasnim, Lalitha Sankar, Oliver Kosut. "DP-MacAdam: Differentially Private Mechanism with Adaptive
    Clipping and Adaptive Momentum." 2026. arXiv:2606.05435.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from adamas import _validate
from adamas._numerics.sums import total
from adamas.geometry import Value
from adamas.rules._adam_family import AdamFamily, has_loop, kernel
from adamas.rules._coordinate_scale import CoordinateScale, cached_parts
from adamas.rules.base import Options, State
from adamas.theory import macadam_excess, macadam_kappa

_KINDS = ("exact", "paper")
_NOISE_CORRECTIONS = ("tracked", "paper")


class MacAdamFamily(AdamFamily, CoordinateScale):
    """Adam that clips around its own moments. Buffers: m, v, s - n and the root of s-hat."""

    def _center(self, state: State, group: Options) -> Tensor:
        m_hat: Tensor = state["m"] / (1 - group["betas"][0] ** state["step"])
        return m_hat

    def _first_std(self, group: Options) -> float:
        return 0.0

    def _first_scale(self, group: Options, std_total: float) -> float:
        return 1 / self._dimension() if group["b0"] is None else float(group["b0"])

    def _update_group(
        self, params: list[Tensor], noise_variance: Mapping[Tensor, Value], group: Options
    ) -> None:
        subtracted = noise_variance
        if group.get("phi") == "paper":  # the variance before rescaling
            subtracted = {p: noise_variance[p] / self._squared_scale(p, group) for p in params}
        super()._update_group(params, subtracted, group)
        for p in params:
            assert p.grad is not None
            _follow(p.grad, noise_variance[p], group, self.state[p])

    def _squared_scale(self, p: Tensor, group: Options) -> Value:
        b = self._scale(p, group, self._total)
        return b.square_() if isinstance(b, Tensor) else b * b


def _follow(gradient: Tensor, variance: Value, group: Options, state: State) -> None:
    """Computes (7) to (10). `s` holds s - n if the noise is tracked."""
    beta, t, m = group["betas"][0], state["step"], state["m"]
    if "s" not in state:
        state["s"], state["std"] = torch.zeros_like(m), torch.empty_like(m)
        state["kappa"] = 0.0
    tracked = group["noise_correction"] == "tracked"
    excess = macadam_excess(t, beta)
    state["kappa"] = beta * state["kappa"] + (1 - beta) * excess
    kappa = state["kappa"] if group["kappa"] == "exact" else macadam_kappa(t, beta, "paper")
    buffers = [x for x in (gradient, m, state["s"], state["std"], variance) if isinstance(x, Tensor)]
    loops = kernel() if t > 1 and len(buffers) == 5 and has_loop(*buffers) else None
    if loops is not None:
        noise = (excess, 0.0) if tracked else (0.0, 1.0)  # subtracted before and after (8)
        numbers = [1 / (1 - beta**t), noise[0], 1 - beta, 1 / kappa, noise[1], group["h1"], group["h2"]]
        loops.make([loops.spread([x.view(-1) for x in buffers], numbers)])
        state["std_sum"] = total(state["std"])
        return
    sums = []
    for g, m_, s, std, var in cached_parts(gradient, m, state["s"], state["std"], variance):
        u = torch.sub(g.to(m.dtype), m_, alpha=1 / (1 - beta**t)).square_()  # (7)
        if tracked:
            u.sub_(var, alpha=excess)  # (9)
        s.lerp_(u, 1 - beta)  # (8)
        if t == 1:  # u and kappa are 0: no estimate yet
            std.fill_(group["h1"])
        else:
            torch.div(s, kappa, out=std)
            if not tracked:
                std.sub_(var)
            std.clamp_(group["h1"], group["h2"])  # (10)
        sums.append(total(std.sqrt_()))
    state["std_sum"] = math.fsum(sums)


def check_estimates(options: Options) -> None:
    """Raises unless the options of (9) and (10) are valid and betas[0] leaves a spread to estimate."""
    _validate.probability(**{"betas[0]": options["betas"][0]})
    _validate.one_of(_KINDS, kappa=options["kappa"])
    _validate.one_of(_NOISE_CORRECTIONS, noise_correction=options["noise_correction"])


def check_phi(options: Options) -> None:
    """Raises unless `phi` is valid."""
    _validate.one_of(_KINDS, phi=options["phi"])
