r"""DP-AdamBC (Tang, Shpilevskiy and Lécuyer, 2024): Adam without the noise in its second moment.

.. math::
    \theta_t = \theta_{t-1} - \eta\,\hat m_t / \sqrt{\max(\hat v_t - \hat\phi_t, \gamma')}

The moments are equations (1) to (6) of `adamas.rules._adam_family`. For a noise variance that does not
change, :math:`\hat\phi_t` is the paper's :math:`\Phi = (\sigma C / B)^2` at every step.

References:
    Qiaoyue Tang, Frederick Shpilevskiy, Mathias Lécuyer. "DP-AdamBC: Your DP-Adam Is Actually DP-SGD (Unless
    You Apply Bias Correction)." AAAI 2024. arXiv:2312.14334.
"""

from adamas import _validate
from adamas.rules._adam_family import AdamFamily, check_common, check_floor
from adamas.rules.base import Options, Params


class AdamBC(AdamFamily):
    r"""Adam with the known noise variance subtracted from its second moment.

    Under clipping and noise, :math:`\hat v` is mostly the variance of the noise, which is the same for all
    coordinates, so Adam acts as SGD with momentum. The subtraction leaves the gradient's own share.

    Privacy: post-processing. Needs: any engine; two buffers per parameter, and a third where the noise
    variance differs by coordinate.

    Args:
        params: Parameters, named parameters or groups.
        lr: Learning rate, eta. The default comes from held-out trials: `docs/learning_rates.md`.
        betas: Decays of the first and second moment.
        floor: gamma', the smallest value under the root. It sets the step size of every coordinate whose
            gradient is hidden by the noise, often more than half of them. So it is a hyperparameter of the
            order of the noise variance, not a stability constant. "auto" takes the deviation that noise
            alone causes in :math:`\hat v` with probability 5% (`adamas.theory.second_moment_deviation`): it
            starts at about 30 times the noise variance and falls to 0.12 of it. Pass a number to use the
            paper's constants (5e-8 on CIFAR-10).
        correction: Multiple of the noise variance that is subtracted. 1 is correct; other values, which need
            a numeric floor, reproduce Figure 5 of the paper.

    Differs from the paper: the noise variance is averaged with the decay of v, so the correction stays exact
    if the variance changes between steps or differs between coordinates.

    Example:
        >>> import torch
        >>> from adamas import PrivateGradient, rules
        >>> p = torch.nn.Parameter(torch.zeros(1))
        >>> rule = rules.AdamBC([p], lr=0.1, floor=1e-3)
        >>> PrivateGradient({p: torch.full((1,), 5.0)}, {p: 9.0}).write_to(rule)
        >>> rule.step()  # 5 / sqrt(25 - 9) = 1.25
        >>> round(p.item(), 4)
        -0.125
    """

    def __init__(
        self,
        params: Params,
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        floor: float | str = "auto",
        correction: float = 1.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "weight_decay": 0.0, "floor": floor, "correction": correction}
        super().__init__(params, defaults)

    @staticmethod
    def _check(options: Options) -> None:
        check_common(options)
        check_floor(options)
        correction = options["correction"]
        _validate.non_negative(correction=correction)
        if correction != 1 and options["floor"] == "auto":
            raise ValueError(
                f"Expected a floor in numbers with correction={correction!r}, got floor='auto', "
                "which is derived for correction=1."
            )
