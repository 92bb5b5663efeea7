r"""DP-AdamW-BC (Chooi et al., 2025): decoupled weight decay with the noise-corrected second moment.

.. math::
    \theta_t = \theta_{t-1}
        - \eta\,(\hat m_t / \sqrt{\max(\hat v_t - \hat\phi_t, \gamma')} + \lambda\theta_{t-1})

The moments are equations (1) to (6) of `adamas.rules._adam_family`.

References:
    Jay Chooi, Kevin Cong, Russell Li, Lillian Sun. "DP-AdamW: Investigating Decoupled Weight Decay and Bias
    Correction in Private Deep Learning." 2025. arXiv:2511.07843.
"""

from adamas.rules._adam_family import AdamFamily, check_common, check_floor
from adamas.rules.base import Options, Params


class AdamWBC(AdamFamily):
    """`AdamBC` with the weight decay of `AdamW`.

    Privacy: post-processing. Needs: any engine; buffers as `AdamBC`.

    Args:
        params: Parameters, named parameters or groups.
        lr: Learning rate, eta. The default comes from held-out trials: `docs/learning_rates.md`.
        betas: Decays of the first and second moment.
        floor: gamma', see `AdamBC`. The paper uses 5e-8 on CIFAR-10 and 1e-8 on QNLI.
        weight_decay: lambda.

    Example:
        >>> import torch
        >>> from adamas import PrivateGradient, rules
        >>> p = torch.nn.Parameter(torch.ones(1))
        >>> rule = rules.AdamWBC([p], lr=0.1, floor=1e-3, weight_decay=0.5)
        >>> PrivateGradient({p: torch.full((1,), 5.0)}, {p: 9.0}).write_to(rule)
        >>> rule.step()  # 1 - 0.1 * (1.25 + 0.5)
        >>> round(p.item(), 4)
        0.825
    """

    def __init__(
        self,
        params: Params,
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        floor: float | str = "auto",
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "floor": floor})

    @staticmethod
    def _check(options: Options) -> None:
        check_common(options)
        check_floor(options)
