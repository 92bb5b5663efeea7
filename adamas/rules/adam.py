r"""DP-Adam: Adam (Kingma and Ba, 2015) on private gradients.

.. math::
    \theta_t = \theta_{t-1} - \eta\,\hat m_t / (\sqrt{\hat v_t} + \gamma)

The moments are equations (1) to (6) of `adamas.rules._adam_family`.

References:
    Diederik P. Kingma, Jimmy Ba. "Adam: A Method for Stochastic Optimization." ICLR 2015. arXiv:1412.6980.
"""

from adamas.rules._adam_family import AdamFamily, check_common, check_eps
from adamas.rules.base import Options, Params


class Adam(AdamFamily):
    r"""Adam, unchanged. Its second-moment estimate is dominated by noise: see `AdamBC`.

    Privacy: post-processing. Needs: any engine; two buffers per parameter.

    Args:
        params: Parameters, named parameters or groups.
        lr: Learning rate, eta. The default comes from held-out trials: `docs/learning_rates.md`.
        betas: Decays of the first and second moment.
        eps: gamma, for stability.
        eps_placement: "outside" adds eps to the root, as implementations do; "inside" takes
            :math:`\sqrt{\hat v + \gamma}`, as the analyses of the DP-AdamBC and DP-MicroAdam papers do.

    Example:
        >>> import torch
        >>> from adamas import PrivateGradient, rules
        >>> p = torch.nn.Parameter(torch.ones(1))
        >>> rule = rules.Adam([p], lr=0.1)
        >>> PrivateGradient({p: torch.full((1,), 5.0)}, {p: 0.0}).write_to(rule)
        >>> rule.step()
        >>> round(p.item(), 4)
        0.9
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        eps_placement: str = "outside",
    ) -> None:
        super().__init__(
            params,
            {"lr": lr, "betas": betas, "weight_decay": 0.0, "eps": eps, "eps_placement": eps_placement},
        )

    @staticmethod
    def _check(options: Options) -> None:
        check_common(options)
        check_eps(options)
