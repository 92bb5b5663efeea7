r"""AdaDPS (Li et al., 2022): a preconditioner from public data or side information, applied before clipping.

.. math::
    E_t        &= \rho E_{t-1} + (1-\rho)\, h_t^2, \quad A = \sqrt{E_t + \epsilon}          \qquad (1) \\
    w_t        &= \Big(\sum_i \mathrm{clip}_C(g_i / A) + N(0, \sigma^2 C^2 I)\Big)\Big/B    \qquad (2) \\
    \theta_t   &= \theta_{t-1} - \eta\, w_t                                                 \qquad (3)

:math:`h` are gradients on public data. The door computes (2), in the geometry that the rule returns: center
0, scale A times the clip norm. The release is :math:`A w_t`.

References:
    Tian Li, Manzil Zaheer, Sashank J. Reddi, Virginia Smith. "Private Adaptive Optimization with Side
    Information." ICML 2022. arXiv:2202.05963.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from adamas import _validate
from adamas._numerics.sums import accumulation_dtype
from adamas.geometry import Geometry, Value
from adamas.rules.base import Options, Params, Rule, State, with_momentum


class AdaDPS(Rule):
    r"""DP-SGD preconditioned with public data or side information.

    Privacy: the scale depends on public values only, provided that the inputs are public. Needs: an engine
    with a scale per coordinate, which all have; one buffer per parameter, two with `momentum`.

    Args:
        params: Parameters, named parameters or groups.
        lr: Learning rate, eta. The default does not come from trials.
        decay: rho, of the public gradients' squares.
        eps: epsilon, inside the root.
        momentum: mu of a buffer :math:`b_t = \mu b_{t-1} + w_t` that replaces w in (3).
        preconditioner: Side information such as token frequencies: A > 0 for some or all parameters.
            `observe` computes the others; until then A is 1, which is DP-SGD.

    Example:
        >>> import torch
        >>> from adamas import rules
        >>> p = torch.nn.Parameter(torch.zeros(2))
        >>> rule = rules.AdaDPS([p], decay=0.5, eps=1.0)
        >>> rule.observe({p: torch.tensor([0.0, 4.0])})  # a gradient on public data
        >>> rule.geometry().scale[p]  # sqrt(0.5 * 16 + 1) = 3
        tensor([1., 3.])
    """

    def __init__(
        self,
        params: Params,
        lr: float = 0.1,
        decay: float = 0.9,
        eps: float = 1e-5,
        momentum: float = 0.0,
        preconditioner: Mapping[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "decay": decay, "eps": eps, "momentum": momentum})
        given = self._own(preconditioner or {}, "preconditioner")
        for value in given.values():
            if value.numel() and not (value.isfinite().all() and (value > 0).all()):
                raise ValueError("Expected preconditioner to be finite and > 0 in every coordinate.")
        for p, value in given.items():
            self.state[p]["A"] = value

    @staticmethod
    def _check(options: Options) -> None:
        _validate.non_negative(lr=options["lr"])
        _validate.positive(eps=options["eps"])
        _validate.decay(decay=options["decay"], momentum=options["momentum"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a saved state; keeps a given preconditioner if the state has none."""
        given = {p: state["A"] for p, state in self.state.items() if "A" in state}
        super().load_state_dict(state_dict)
        for p, value in given.items():
            self.state[p].setdefault("A", value)

    @torch.no_grad()
    def observe(self, gradients: Mapping[Tensor, Tensor]) -> None:
        """Updates the preconditioner with mean gradients on a batch of public data: equation (1).

        Call it once per step or per epoch, with gradients for some or all parameters. A parameter with a
        given `preconditioner` keeps it.
        """
        public = self._own(gradients, "gradients")
        for value in public.values():
            if not value.square().isfinite().all():
                raise ValueError("Expected public gradients whose squares are finite.")
        for group in self.param_groups:
            for p in group["params"]:
                if p not in public or "A" in self.state[p]:
                    continue
                state = self.state[p]
                h = public[p]
                e = state.setdefault("E", torch.zeros_like(h))
                e.mul_(group["decay"]).addcmul_(h, h, value=1 - group["decay"])

    def geometry(self) -> Geometry:
        """Returns the scale of the next step, from public values."""
        return Geometry(
            None,
            {
                p: self._preconditioner(p, group)
                for group in self.param_groups
                for p in group["params"]
                if p.requires_grad
            },
        )

    def _preconditioner(self, p: Tensor, group: Options) -> Value:
        state = self.state.get(p, {})
        if "A" in state:
            given: Tensor = state["A"]
            return given.clone()
        if "E" in state:
            made: Tensor = (state["E"] + group["eps"]).sqrt_()
            return made
        return 1.0

    def _own(self, values: Mapping[Tensor, Tensor], name: str) -> dict[Tensor, Tensor]:
        """Checks that the values belong to parameters of the rule; returns copies in the state's dtype."""
        if not isinstance(values, Mapping):
            raise TypeError(f"Expected {name} to be a mapping by parameter, got {type(values).__name__}.")
        known = {p for group in self.param_groups for p in group["params"]}
        for p, value in values.items():
            if p not in known:
                raise ValueError(f"Expected {name} for parameters of the rule only.")
            if not isinstance(value, Tensor):
                raise TypeError(f"Expected {name} to be tensors, got {type(value).__name__}.")
            if value.shape != p.shape:
                raise ValueError(f"Expected {name} of shape {tuple(p.shape)}, got {tuple(value.shape)}.")
        return {
            p: value.detach().to(p.device, accumulation_dtype(p.dtype), copy=True)
            for p, value in values.items()
        }

    def _update(
        self, p: Tensor, gradient: Tensor, noise_variance: Value, group: Options, state: State
    ) -> None:
        w = gradient.to(accumulation_dtype(p.dtype)) / self._preconditioner(p, group)
        w = with_momentum(w, group, state)
        p.add_(w, alpha=-group["lr"])  # (3)
