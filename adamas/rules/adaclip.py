r"""AdaClip (Pichapati et al., 2019): clipping around a running mean, at a scale for each coordinate.

.. math::
    b_t         &= \sqrt{s_t}\,\sqrt{\textstyle\sum_j s_{t,j}}                             \qquad (1) \\
    \tilde g_t  &= b_t \odot \Big(\sum_i \mathrm{clip}_1\Big(\frac{g_i - m_t}{b_t}\Big)
                   + N(0, \sigma^2 I)\Big)\Big/B + m_t                                     \qquad (2) \\
    \theta_t    &= \theta_{t-1} - \eta\,\tilde g_t                                         \qquad (3) \\
    m_{t+1}     &= \beta_1 m_t + (1-\beta_1)\tilde g_t                                     \qquad (4) \\
    u_t         &= \mathrm{clip}_{[h_1, h_2]}\big((\tilde g_t - m_t)^2
                   - \mathrm{Var}(\tilde g_t)\big)                                         \qquad (5) \\
    s^2_{t+1}   &= \beta_2 s^2_t + (1-\beta_2) u_t                                         \qquad (6)

The door computes (2), in the geometry that the rule returns.

References:
    Venkatadheeraj Pichapati, Ananda Theertha Suresh, Felix X. Yu, Sashank J. Reddi, Sanjiv Kumar. "AdaCliP:
    Adaptive Clipping for Private SGD." 2019. arXiv:1908.07643.
"""

import math

import torch
from torch import Tensor

from adamas import _validate
from adamas._numerics.sums import accumulation_dtype, total
from adamas.geometry import Value
from adamas.rules._coordinate_scale import CoordinateScale, cached_parts, check_bounds
from adamas.rules.base import Options, Params, State


class AdaClip(CoordinateScale):
    r"""DP-SGD that scales the clipping of each coordinate by how much the coordinate varies.

    Not the quantile method (Andrew et al., 2021) that Opacus calls AdaClip.

    Privacy: the next step's center and scale are functions of earlier releases. Needs: an engine with a
    scale per coordinate, which all have; two buffers per parameter.

    Args:
        params: All parameters of a model, named or in groups: the scale sums over them.
        lr: Learning rate, eta. The default comes from held-out trials: `docs/learning_rates.md`.
        betas: Decays of the mean and of the variance.
        h1: Lower bound on the variance of a coordinate.
        h2: Upper bound.
        b0: First scale; None takes (1) with :math:`s^2 = \sqrt{h_1 h_2}`, the geometric mean.

    The clip norm of a run multiplies (1); the paper's is 1. A release is a mean of B examples, so s estimates
    the deviation of the mean, which is about :math:`\sqrt B` times smaller than that of an example, and most
    examples are clipped. This is the published method.

    Differs from the paper: (5) subtracts the noise of a batch mean; the original has B = 1.

    Example:
        >>> import torch
        >>> from adamas import rules
        >>> p = torch.nn.Parameter(torch.zeros(4))
        >>> rule = rules.AdaClip([p], h1=0.01, h2=1.0)
        >>> round(rule.geometry().scale[p], 4)  # s = (h1 h2)^(1/4) = 0.3162, times sqrt(4)
        0.6325
    """

    def __init__(
        self,
        params: Params,
        lr: float = 10.0,
        betas: tuple[float, float] = (0.9, 0.9),
        h1: float = 1e-9,
        h2: float = 1e-6,
        b0: float | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "h1": h1, "h2": h2, "b0": b0})

    @staticmethod
    def _check(options: Options) -> None:
        _validate.non_negative(lr=options["lr"])
        _validate.decays(betas=options["betas"])
        check_bounds(options)

    def _center(self, state: State, group: Options) -> Tensor:
        mean: Tensor = state["m"]
        return mean.clone()

    def _first_std(self, group: Options) -> float:
        return float((group["h1"] * group["h2"]) ** 0.25)

    def _first_scale(self, group: Options, std_total: float) -> float:
        if group["b0"] is not None:
            return float(group["b0"])
        return math.sqrt(self._first_std(group) * std_total)

    def _update(
        self, p: Tensor, gradient: Tensor, noise_variance: Value, group: Options, state: State
    ) -> None:
        b1, b2 = group["betas"]
        dtype = accumulation_dtype(p.dtype)
        if not state:
            state["m"] = torch.zeros_like(p, dtype=dtype)
            state["std"] = torch.full_like(p, self._first_std(group), dtype=dtype)
        p.add_(gradient, alpha=-group["lr"])  # (3)
        sums = []
        for g, m, std, variance in cached_parts(gradient, state["m"], state["std"], noise_variance):
            u = torch.sub(g, m).square_().sub_(variance).clamp_(group["h1"], group["h2"])  # (5)
            m.lerp_(g.to(dtype), 1 - b1)  # (4)
            std.square_().lerp_(u, 1 - b2).sqrt_()  # (6)
            sums.append(total(std))
        state["std_sum"] = math.fsum(sums)
