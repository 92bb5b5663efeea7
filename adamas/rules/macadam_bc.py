r"""DP-MacAdam-BC (Tasnim, Sankar and Kosut, 2026): MacAdam with the noise-corrected second moment.

.. math::
    \theta_t = \theta_{t-1} - \eta\,\hat m_t / \sqrt{\max(\hat v_t - \hat\phi_t, \gamma')}

The moments are equations (1) to (6) of `adamas.rules._adam_family`, clipping is as in
`adamas.rules.macadam`.

References:
    Naima Tasnim, Lalitha Sankar, Oliver Kosut. "DP-MacAdam: Differentially Private Mechanism with Adaptive
    Clipping and Adaptive Momentum." 2026. arXiv:2606.05435.
"""

from adamas.rules._adam_family import check_common, check_floor
from adamas.rules._coordinate_scale import check_bounds
from adamas.rules._macadam_family import MacAdamFamily, check_estimates, check_phi
from adamas.rules.base import Options, Params


class MacAdamBC(MacAdamFamily):
    r"""`MacAdam` with the known noise variance, coordinate by coordinate, subtracted as in `AdamBC`.

    Privacy: the next step's center and scale are functions of earlier releases. Needs: an engine with a
    scale per coordinate, which all have; five buffers per parameter.

    Args:
        params: All parameters of a model, named or in groups: the scale sums over them.
        lr: Learning rate, eta. The default comes from held-out trials: `docs/learning_rates.md`.
        betas: Decays of the first and second moment; the first is also used for the spread.
        floor: gamma', see `AdamBC`; "auto" follows the variance that is subtracted. The paper states none;
            1e-8 reproduces its Table I.
        h1: Lower bound on the variance of a coordinate, see `MacAdam`.
        h2: Upper bound.
        b0: First scale; None takes 1/d.
        kappa: "exact" or "paper", see `MacAdam`.
        noise_correction: "tracked" or "paper", see `MacAdam`.
        phi: "exact" subtracts the average of the release's own noise variance
            :math:`b_{t-1}^2\sigma^2/B^2`. "paper" subtracts :math:`\sigma^2/B^2`, which omits the scale: too
            large by a factor of 1.3 to 1250 on MNIST, too small by a factor of 29 or more on CIFAR-10.

    Differs from the paper: `kappa`, `noise_correction` and `phi`.

    Example:
        >>> import torch
        >>> from adamas import PrivateGradient, rules
        >>> p = torch.nn.Parameter(torch.zeros(1))
        >>> rule = rules.MacAdamBC([p], lr=0.1, floor=1e-3)
        >>> PrivateGradient({p: torch.full((1,), 5.0)}, {p: torch.full((1,), 9.0)}).write_to(rule)
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
        h1: float = 1e-9,
        h2: float = 1e-6,
        b0: float | None = None,
        kappa: str = "exact",
        noise_correction: str = "tracked",
        phi: str = "exact",
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "weight_decay": 0.0,
                "floor": floor,
                "h1": h1,
                "h2": h2,
                "b0": b0,
                "kappa": kappa,
                "noise_correction": noise_correction,
                "phi": phi,
            },
        )

    @staticmethod
    def _check(options: Options) -> None:
        check_common(options)
        check_floor(options)
        check_bounds(options)
        check_estimates(options)
        check_phi(options)
