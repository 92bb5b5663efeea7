r"""DP-SGD and DP-SGDM (Abadi et al., 2016).

.. math::
    b_t      &= \mu b_{t-1} + \tilde g_t                    \qquad (1) \\
    \theta_t &= (1 - \eta\lambda)\theta_{t-1} - \eta b_t    \qquad (2)

References:
    Martín Abadi, Andy Chu, Ian Goodfellow, H. Brendan McMahan, Ilya Mironov, Kunal Talwar, Li Zhang. "Deep
    Learning with Differential Privacy." CCS 2016. arXiv:1607.00133.
"""

from torch import Tensor

from adamas import _validate
from adamas._numerics.sums import accumulation_dtype
from adamas.geometry import Value
from adamas.rules.base import Options, Params, Rule, State, with_momentum


class SGD(Rule):
    """Steps along the private gradient, with momentum and decoupled weight decay.

    Privacy: post-processing. Needs: any engine; one buffer per parameter if `momentum` is not 0.

    Args:
        params: Parameters, named parameters or groups.
        lr: Learning rate, eta. The default comes from held-out trials: `docs/learning_rates.md`.
        momentum: mu; 0 keeps no state.
        weight_decay: lambda, decoupled: it shrinks the parameters and is not clipped.

    Differs from the paper: the DP-AdamBC paper prints (2) with a plus sign, a typing error.

    Example:
        >>> import torch
        >>> from adamas import PrivateGradient, rules
        >>> p = torch.nn.Parameter(torch.ones(1))
        >>> rule = rules.SGD([p], lr=0.1, momentum=0.5)
        >>> for _ in range(2):
        ...     PrivateGradient({p: torch.ones(1)}, {p: 0.0}).write_to(rule)
        ...     rule.step()
        >>> round(p.item(), 4)
        0.75
    """

    def __init__(
        self, params: Params, lr: float = 1.0, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @staticmethod
    def _check(options: Options) -> None:
        _validate.non_negative(lr=options["lr"], weight_decay=options["weight_decay"])
        _validate.decay(momentum=options["momentum"])

    def _update(
        self, p: Tensor, gradient: Tensor, noise_variance: Value, group: Options, state: State
    ) -> None:
        direction = with_momentum(gradient.to(accumulation_dtype(p.dtype)), group, state)  # (1)
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.add_(direction, alpha=-group["lr"])  # (2)
