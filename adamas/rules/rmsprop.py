r"""DP-RMSProp: RMSProp (Tieleman and Hinton, 2012) on private gradients.

.. math::
    v_t      &= \alpha v_{t-1} + (1-\alpha)\tilde g_t^2                     \qquad (1) \\
    b_t      &= \mu b_{t-1} + \tilde g_t / (\sqrt{v_t} + \gamma)           \qquad (2) \\
    \theta_t &= \theta_{t-1} - \eta b_t                                     \qquad (3)

References:
    Tijmen Tieleman, Geoffrey Hinton. "Lecture 6.5, RMSProp: Divide the Gradient by a Running Average of Its
    Recent Magnitude." Neural Networks for Machine Learning, Coursera, 2012.
"""

import torch
from torch import Tensor

from adamas import _validate
from adamas._numerics.sums import accumulation_dtype
from adamas.geometry import Value
from adamas.rules.base import Options, Params, Rule, State, with_momentum


class RMSProp(Rule):
    """Divides the private gradient by the root of its averaged square, which starts at 0.

    Privacy: post-processing. Needs: any engine; one buffer per parameter, two with `momentum`.

    Args:
        params: Parameters, named parameters or groups.
        lr: Learning rate, eta. The default comes from held-out trials: `docs/learning_rates.md`.
        alpha: Decay of the averaged square.
        eps: gamma, for stability.
        momentum: mu; 0 keeps no buffer for it.

    Example:
        >>> import torch
        >>> from adamas import PrivateGradient, rules
        >>> p = torch.nn.Parameter(torch.ones(1))
        >>> rule = rules.RMSProp([p], lr=0.1, alpha=0.75)
        >>> PrivateGradient({p: torch.full((1,), 5.0)}, {p: 0.0}).write_to(rule)
        >>> rule.step()  # 5 / sqrt(0.25 * 25) = 2
        >>> round(p.item(), 4)
        0.8
    """

    def __init__(
        self,
        params: Params,
        lr: float = 3e-3,
        alpha: float = 0.9,
        eps: float = 1e-8,
        momentum: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps, "momentum": momentum})

    @staticmethod
    def _check(options: Options) -> None:
        _validate.non_negative(lr=options["lr"], eps=options["eps"])
        _validate.decay(alpha=options["alpha"], momentum=options["momentum"])

    def _update(
        self, p: Tensor, gradient: Tensor, noise_variance: Value, group: Options, state: State
    ) -> None:
        dtype = accumulation_dtype(p.dtype)
        if not state:
            state["v"] = torch.zeros_like(p, dtype=dtype)
        v, g = state["v"], gradient.to(dtype)
        v.mul_(group["alpha"]).addcmul_(g, g, value=1 - group["alpha"])  # (1)
        direction = g / v.sqrt().add_(group["eps"])
        if not group["eps"]:
            direction.masked_fill_(v == 0, 0.0)  # coordinates whose squared gradients were all 0
        direction = with_momentum(direction, group, state)  # (2)
        p.add_(direction, alpha=-group["lr"])  # (3)
