r"""DP-AdamW (Chooi et al., 2025): decoupled weight decay on private gradients.

.. math::
    \theta_t = \theta_{t-1} - \eta\,(\hat m_t / (\sqrt{\hat v_t} + \gamma) + \lambda\theta_{t-1})

The moments are equations (1) to (6) of `adamas.rules._adam_family`.

References:
    Jay Chooi, Kevin Cong, Russell Li, Lillian Sun. "DP-AdamW: Investigating Decoupled Weight Decay and Bias
    Correction in Private Deep Learning." 2025. arXiv:2511.07843.

    Ilya Loshchilov, Frank Hutter. "Decoupled Weight Decay Regularization." ICLR 2019. arXiv:1711.05101.
"""

from adamas.rules._adam_family import AdamFamily, check_common, check_eps
from adamas.rules.base import Options, Params


class AdamW(AdamFamily):
    r"""Adam with decoupled weight decay: it shrinks the parameters and is neither clipped nor averaged.

    Privacy: post-processing. Needs: any engine; two buffers per parameter.

    Args:
        params: Parameters, named parameters or groups.
        lr: Learning rate, eta. The default comes from held-out trials: `docs/learning_rates.md`.
        betas: Decays of the first and second moment.
        eps: gamma, for stability.
        weight_decay: lambda.
        eps_placement: "outside" adds eps to the root, as `torch.optim.AdamW` does; "inside" is
            Algorithm 1 of the paper as printed.

    Differs from the paper: by default eps is added outside the root. With 5e-8 inside, the paper's
    denominator is 2.5% larger where the standard deviation of the noise is near 1e-3.

    Example:
        >>> import torch
        >>> from adamas import PrivateGradient, rules
        >>> p = torch.nn.Parameter(torch.ones(1))
        >>> rule = rules.AdamW([p], lr=0.1, weight_decay=0.5)
        >>> PrivateGradient({p: torch.full((1,), 5.0)}, {p: 0.0}).write_to(rule)
        >>> rule.step()
        >>> round(p.item(), 4)
        0.85
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        eps_placement: str = "outside",
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "weight_decay": weight_decay,
                "eps": eps,
                "eps_placement": eps_placement,
            },
        )

    @staticmethod
    def _check(options: Options) -> None:
        check_common(options)
        check_eps(options)
