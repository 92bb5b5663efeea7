r"""DP²-RMSProp (Li et al., 2023): delayed preconditioning, in two alternating phases.

.. math::
    \text{steps } 1, \dots, s:\quad
        & \theta_t = \theta_{t-1} - \eta_1 \tilde g_t, \quad G \leftarrow G + \tilde g_t    \qquad (1) \\
    \text{after step } s:\quad
        & A \leftarrow \rho A + (1-\rho)(G/s)^2, \quad G \leftarrow 0                       \qquad (2) \\
    \text{steps } s+1, \dots, 2s:\quad
        & w_t = \Big(\sum_i \mathrm{clip}_{C_2}\Big(\frac{g_i}{\sqrt A + \epsilon}\Big)
          + N(0, \sigma^2 C_2^2 I)\Big)\Big/B, \quad \theta_t = \theta_{t-1} - \eta_2 w_t   \qquad (3)

and again from the start. (2) squares the mean of s releases, whose noise variance is s times smaller. The
door clips and noises (3), in the geometry that the rule returns: center 0, scale
:math:`\sqrt A + \epsilon` times :math:`C_2`; the release is :math:`(\sqrt A + \epsilon)\,w_t`.

References:
    Tian Li, Manzil Zaheer, Ken Ziyu Liu, Sashank J. Reddi, H. Brendan McMahan, Virginia Smith.
    "Differentially Private Adaptive Optimization with Delayed Preconditioners." ICLR 2023. arXiv:2212.00309.
"""

import torch
from torch import Tensor

from adamas import _validate
from adamas._numerics.sums import accumulation_dtype
from adamas.geometry import Geometry, Value
from adamas.rules.base import Options, Params, Rule, State, with_momentum


class DP2RMSProp(Rule):
    r"""Alternates phases of DP-SGD with phases of steps that their releases precondition.

    Privacy: the next step's scale is a function of earlier releases; each step is one release. Needs: an
    engine with a scale per coordinate, which all have; two buffers per parameter, three with `momentum`.

    Args:
        params: Parameters, named parameters or groups.
        lr: Learning rate of the first phase, eta_1. The defaults of both rates do not come from trials.
        lr2: Learning rate of the second phase, eta_2. A schedule that moves `lr` moves it in proportion.
        period: s, the length of each phase.
        clip_ratio: C_2/C_1: clip norm of the second phase, relative to the run's clip norm.
        decay: rho.
        eps: epsilon, outside the root.
        momentum: mu of a momentum buffer that replaces the gradient in (1) and (3); the paper has none.

    Example:
        >>> import torch
        >>> from adamas import PrivateGradient, rules
        >>> p = torch.nn.Parameter(torch.zeros(1))
        >>> rule = rules.DP2RMSProp([p], lr=0.1, lr2=0.01, period=2, decay=0.75, eps=1.0)
        >>> for gradient in (2.0, 6.0):
        ...     PrivateGradient({p: torch.full((1,), gradient)}, {p: 0.0}).write_to(rule)
        ...     rule.step()
        >>> round(p.item(), 4), rule.geometry().scale[p]  # sqrt(0.25 * 4^2) + 1
        (-0.8, tensor([3.]))
    """

    def __init__(
        self,
        params: Params,
        lr: float = 0.1,
        lr2: float = 1e-3,
        period: int = 100,
        clip_ratio: float = 1.0,
        decay: float = 0.9,
        eps: float = 1e-5,
        momentum: float = 0.0,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "lr2": lr2,
                "period": period,
                "clip_ratio": clip_ratio,
                "decay": decay,
                "eps": eps,
                "momentum": momentum,
            },
        )

    def add_param_group(self, param_group: Options) -> None:
        """Adds parameters, and keeps their `lr` as the base by which a schedule also scales `lr2`."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group.setdefault("base_lr", group["lr"])

    @staticmethod
    def _check(options: Options) -> None:
        _validate.non_negative(lr=options["lr"], lr2=options["lr2"])
        _validate.count(period=options["period"])
        _validate.positive(clip_ratio=options["clip_ratio"], eps=options["eps"])
        _validate.decay(decay=options["decay"], momentum=options["momentum"])

    def geometry(self) -> Geometry:
        """Returns the ball in the first phase, the scale of the preconditioner in the second."""
        scale: dict[Tensor, Value] = {}
        for group in self.param_groups:
            for p in group["params"]:
                if p.requires_grad:
                    a = _preconditioner(self.state.get(p, {}), group)
                    scale[p] = 1.0 if a is None else a.mul_(group["clip_ratio"])
        return Geometry(None, scale)

    def _update(
        self, p: Tensor, gradient: Tensor, noise_variance: Value, group: Options, state: State
    ) -> None:
        dtype = accumulation_dtype(p.dtype)
        if not state:
            state["step"] = 0
            state["A"] = torch.zeros_like(p, dtype=dtype)
            state["G"] = torch.zeros_like(p, dtype=dtype)
        direction, rate = gradient.to(dtype), group["lr"]
        a = _preconditioner(state, group)
        state["step"] += 1
        if a is None:
            state["G"].add_(direction)  # (1)
            if state["step"] % group["period"] == 0:
                mean = state["G"].div_(group["period"])
                state["A"].mul_(group["decay"]).addcmul_(mean, mean, value=1 - group["decay"])  # (2)
                mean.zero_()
        else:
            direction = direction / a
            rate = group["lr2"] * (rate / group["base_lr"] if group["base_lr"] else 1.0)
        direction = with_momentum(direction, group, state)
        p.add_(direction, alpha=-rate)  # (1), (3)


def _preconditioner(state: State, group: Options) -> Tensor | None:
    """Returns the divisor of the next step; None in the first phase."""
    if not state or state["step"] // group["period"] % 2 == 0:
        return None
    root: Tensor = state["A"].sqrt()
    return root.add_(group["eps"])
