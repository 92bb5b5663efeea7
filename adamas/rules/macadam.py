r"""DP-MacAdam (Tasnim, Sankar and Kosut, 2026): Adam with clipping driven by its own moments.

.. math::
    \tilde g_t  &= b_{t-1} \odot \Big(\sum_i \mathrm{clip}_1\Big(\frac{g_i - \hat m_{t-1}}{b_{t-1}}\Big)
                   + N(0, \sigma^2 I)\Big)\Big/B + \hat m_{t-1} \\
    \theta_t    &= \theta_{t-1} - \eta\,\hat m_t / (\sqrt{\hat v_t} + \gamma)

The moments are equations (1) to (6) of `adamas.rules._adam_family`, the scale b is (7) to (11) of
`adamas.rules._macadam_family`.

References:
    Naima Tasnim, Lalitha Sankar, Oliver Kosut. "DP-MacAdam: Differentially Private Mechanism with Adaptive
    Clipping and Adaptive Momentum." 2026. arXiv:2606.05435.
"""

from adamas.rules._adam_family import check_common, check_eps
from adamas.rules._coordinate_scale import check_bounds
from adamas.rules._macadam_family import MacAdamFamily, check_estimates
from adamas.rules.base import Options, Params


class MacAdam(MacAdamFamily):
    r"""Adam that clips around its first moment, at a scale estimated from the spread of its gradients.

    Privacy: the next step's center and scale are functions of earlier releases. Needs: an engine with a
    scale per coordinate, which all have; four buffers per parameter.

    Args:
        params: All parameters of a model, named or in groups: the scale sums over them.
        lr: Learning rate, eta. The default comes from held-out trials: `docs/learning_rates.md`.
        betas: Decays of the first and second moment; the first is also used for the spread.
        eps: gamma, for stability.
        h1: Lower bound on the variance of a coordinate. The paper uses 1e-9 on MNIST and 5e-5 on CIFAR-10.
        h2: Upper bound. The paper uses 1e-6 and 1.0.
        b0: First scale. None takes 1/d, as published: the first gradient is then almost all noise. In a model
            with few parameters 1/d is far above the next scale, and the center starts far out.
        kappa: "exact" makes the variance estimate unbiased. "paper" is the published factor, which is correct
            for a fixed center and too large for a moving one: 2.1 times at the second step, 1.5 times at
            the fifth, 1/beta times in the limit.
        noise_correction: "tracked" subtracts the noise that entered s, step by step. "paper" subtracts the
            noise of the current step, which makes the scale swing between its bounds under strong noise.

    The clip norm of a run multiplies the scale; the paper's is 1.

    Differs from the paper: `kappa` and `noise_correction`. At the first step, where the published formula
    is 0/0, the variance is h1.

    Example:
        >>> import torch
        >>> from adamas import PrivateGradient, rules
        >>> p = torch.nn.Parameter(torch.zeros(4))
        >>> rule = rules.MacAdam([p], lr=0.1, h1=0.01, h2=1.0)
        >>> rule.geometry().scale[p]
        0.25
        >>> PrivateGradient({p: torch.ones(4)}, {p: 0.0}).write_to(rule)
        >>> rule.step()
        >>> rule.geometry().scale[p]  # sqrt(4 h1)
        tensor([0.2000, 0.2000, 0.2000, 0.2000])
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        h1: float = 1e-9,
        h2: float = 1e-6,
        b0: float | None = None,
        kappa: str = "exact",
        noise_correction: str = "tracked",
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "weight_decay": 0.0,
                "eps": eps,
                "eps_placement": "outside",
                "h1": h1,
                "h2": h2,
                "b0": b0,
                "kappa": kappa,
                "noise_correction": noise_correction,
            },
        )

    @staticmethod
    def _check(options: Options) -> None:
        check_common(options)
        check_eps(options)
        check_bounds(options)
        check_estimates(options)
