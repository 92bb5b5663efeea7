r"""Scale-then-privatize Adam (Ganesh et al., 2025, after Li et al., 2022): scaling before clipping.

.. math::
    \tilde g_t &= \frac{1}{s_t} \odot \Big(\sum_i \mathrm{clip}_C(s_t \odot g_i)
                  + N(0, \sigma^2 C^2 I)\Big)\Big/B                                        \qquad (7) \\
    s_{t+1}    &= 1/(\sqrt{\hat v_t} + \epsilon_2), \quad s_1 = 1                          \qquad (8) \\
    \theta_t   &= \theta_{t-1} - \eta\,\hat m_t / (\sqrt{\hat v_t} + \gamma)               \qquad (9)

The moments are equations (1) to (6) of `adamas.rules._adam_family`. The door computes (7), in the
geometry that the rule returns: center 0, scale :math:`1/s_t` times the clip norm.

References:
    Arun Ganesh, Brendan McMahan, Abhradeep Thakurta. "On Design Principles for Private Adaptive Optimizers."
    2025. arXiv:2507.01129.

    Tian Li, Manzil Zaheer, Sashank J. Reddi, Virginia Smith. "Private Adaptive Optimization with Side
    Information." ICML 2022. arXiv:2202.05963.

    Mihaela Hudişteanu, Nikita P. Kalinin, Edwige Cyffers. "DP-MicroAdam: Private and Frugal Algorithm for
    Training and Fine-tuning." 2025. arXiv:2511.20509.
"""

import torch
from torch import Tensor

from adamas import _validate
from adamas.geometry import Geometry, Value
from adamas.rules._adam_family import AdamFamily, check_common, check_eps, check_floor
from adamas.rules.base import Options, Params


class ScaleThenPrivatize(AdamFamily):
    r"""Adam that clips examples in its own preconditioned coordinates.

    Privacy: the next step's scale is a function of earlier releases. Needs: an engine with a scale per
    coordinate, which all have; two buffers per parameter, three with a `floor`.

    Args:
        params: Parameters, named parameters or groups.
        lr: Learning rate, eta. The default comes from held-out trials: `docs/learning_rates.md`.
        betas: Decays of the first and second moment.
        eps: gamma, for stability of the update.
        scale_eps: epsilon_2, which bounds the scale :math:`1/s` from below. With a value near 0, as the
            DP-MicroAdam paper prints it, coordinates without a gradient would use up the clip norm.
        floor: None keeps the noise in the second moment, as published. A number or "auto" subtracts it as
            in `AdamBC`, whose root then replaces the one in (8) and, without gamma, in (9).

    Differs from the paper: the DP-MicroAdam paper prints the noise in (7) without its division by B, and one
    constant for both eps and scale_eps.

    Example:
        >>> import torch
        >>> from adamas import PrivateGradient, rules
        >>> p = torch.nn.Parameter(torch.zeros(2))
        >>> rule = rules.ScaleThenPrivatize([p], lr=0.1, scale_eps=0.5)
        >>> rule.geometry().scale[p]
        1.0
        >>> PrivateGradient({p: torch.tensor([3.0, -4.0])}, {p: 0.0}).write_to(rule)
        >>> rule.step()
        >>> rule.geometry().scale[p]
        tensor([3.5000, 4.5000])
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        scale_eps: float = 1e-2,
        floor: float | str | None = None,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "weight_decay": 0.0,
                "eps": eps,
                "eps_placement": "outside",
                "scale_eps": scale_eps,
                "floor": floor,
            },
        )

    @staticmethod
    def _check(options: Options) -> None:
        check_common(options)
        check_eps(options)
        _validate.positive(scale_eps=options["scale_eps"])
        if options["floor"] is not None:
            check_floor(options)

    @torch.no_grad()
    def geometry(self) -> Geometry:
        """Returns the scale of the next step, from the releases so far."""
        scale: dict[Tensor, Value] = {}
        for group in self.param_groups:
            for p in group["params"]:
                if not p.requires_grad:
                    continue
                moments = self.moments(p)
                if moments is None:
                    scale[p] = 1.0
                    continue
                root = moments.v_hat.sqrt_() if moments.floor is None else moments.denominator
                scale[p] = root.add_(group["scale_eps"])  # (8)
        return Geometry(None, scale)
