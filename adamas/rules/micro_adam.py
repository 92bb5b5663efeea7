r"""DP-MicroAdam (Hudişteanu et al., 2025): Adam on the largest coordinates, in a byte per parameter.

.. math::
    a_t            &= \tilde g_t + Q^{-1}(e_{t-1})                                           \qquad (1) \\
    \mathcal I_t   &= \text{the } k \text{ coordinates with the largest } |a_t|, \quad
    \mathcal V_t    = a_t[\mathcal I_t]                                                      \qquad (2) \\
    e_t            &= Q(a_t \text{ with } a_t[\mathcal I_t] = 0)                             \qquad (3) \\
    z^{(1)}_t      &= \sum_{r} \beta_1^{(t-1-r) \bmod m}\,\mathcal V_{(r)}, \quad
    z^{(2)}_t       = \sum_{r} \beta_2^{(t-1-r) \bmod m}\,\mathcal V_{(r)}^2                 \qquad (4) \\
    \hat m_t       &= \frac{1-\beta_1}{1-\beta_1^t}\,z^{(1)}_t, \quad
    \hat v_t        = \frac{1-\beta_2}{1-\beta_2^t}\,z^{(2)}_t                               \qquad (5) \\
    \theta_t       &= (1 - \eta\lambda)\theta_{t-1} - \eta\,\hat m_t/(\sqrt{\hat v_t}+\gamma) \qquad (6)

Row r of the window, 0 to m-1, holds the last selection whose step t has (t-1) mod m = r; each value belongs
to its own coordinate. Q is `adamas.rules._quantization`.

References:
    Mihaela Hudişteanu, Nikita P. Kalinin, Edwige Cyffers. "DP-MicroAdam: Private and Frugal Algorithm for
    Training and Fine-tuning." 2025. arXiv:2511.20509.

    Ionut-Vlad Modoranu, Mher Safaryan, Grigory Malinovsky, Eldar Kurtic, Thomas Robert, Peter Richtárik, Dan
    Alistarh. "MicroAdam: Accurate Adaptive Optimization with Low Space Overhead and Provable Convergence."
    NeurIPS 2024. arXiv:2405.15593.
"""

import functools
import math
from collections.abc import Mapping
from concurrent.futures import Future, wait
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from adamas import _validate
from adamas._streams import Seed
from adamas.geometry import Value
from adamas.rules._adam_family import check_common
from adamas.rules._largest import MARGIN
from adamas.rules._micro_adam_state import BLOCK, fits, layout, selected_counts, started
from adamas.rules._micro_adam_step import (
    accumulate,
    decay_factor,
    row_weights,
    scratch_buffers,
    step_blocks,
    step_constants,
    step_selected,
)
from adamas.rules.base import Options, Params, Rule, State

_BITS = (4, None)
_ROUNDINGS = ("nearest", "stochastic")
_SCOPES = ("block", "tensor", "global")


class MicroAdam(Rule):
    r"""Adam on a sparse window: keeps the largest coordinates of recent steps, and feeds the rest back.

    Each step selects a fraction of the coordinates and adds the rest to the next gradient. With the defaults
    the state takes 0.92 bytes per parameter; Adam's takes 8.

    Privacy: post-processing. Needs: any engine; 4 bits per parameter for the error and 32 bits per
    selected coordinate and row of the window.

    Args:
        params: Parameters, named parameters or groups.
        lr: Learning rate, eta. The default comes from held-out trials: `docs/learning_rates.md`.
        betas: Decays of the first and second moment.
        eps: gamma, for stability.
        weight_decay: lambda, decoupled: acts on the parameters before the step.
        density: The fraction of the coordinates that a step selects, rounded up to k coordinates.
        window: m, the number of selections from which the moments are computed.
        bits: 4 keeps the error in 4-bit codes and the window in bfloat16; None keeps both in full precision.
        bucket_size: Consecutive entries that share the bounds of their codes.
        rounding: "nearest", or "stochastic" for an unbiased Q. Its random numbers are public: they depend
            only on the step and on the parameter's position.
        scope: Where the largest are selected: in each "block" of 32768 consecutive entries of a tensor, in
            each "tensor", or "global", among all parameters of the rule.
        window_correction: Divides by :math:`1-\beta^{\min(t,m)}` in (5), the weight of the window, instead
            of by :math:`1-\beta^t`.

    The sums of (4) have m terms, but the division in (5) expects t. With the default betas and window and
    for large t, a coordinate that is selected at every step with the same value moves by 6.5 eta, and one
    that is selected once by 3.2 eta. With `window_correction` the former moves by at most 1 eta.

    On a CPU a compiled step takes 0.8 to 1.5 times as long as one of `torch.optim.Adam`. It is used for
    float32 parameters with the defaults of `bits`, `rounding` and `scope`, if the bucket size divides the
    block and Numba works. Otherwise a step takes 2 to 4 times as long, with the same numbers, bit for bit.
    The first step compiles it, which takes about five seconds, once per installation.

    Scratch memory is a few megabytes with the scope "block" and a bucket size that divides the block, and
    a few times the largest tensor otherwise.

    Differs from the paper: the exponent in (4) is 0 for the newest row, while Algorithm 2 as printed starts
    at m-1. The selection is per block, not among all coordinates. Codes have one pair of float32 bounds per
    bucket, not one per vector. The published experiments ran `bits=None, scope="tensor"`: their error was
    not quantized.

    Example:
        >>> import torch
        >>> from adamas import PrivateGradient, rules
        >>> p = torch.nn.Parameter(torch.zeros(4))
        >>> rule = rules.MicroAdam([p], lr=0.1, density=0.25)
        >>> for _ in range(2):
        ...     PrivateGradient({p: torch.tensor([1.0, -3.0, 2.0, 0.0])}, {p: 0.0}).write_to(rule)
        ...     rule.step()
        >>> [round(x, 4) for x in p.tolist()]
        [0.0, 0.167, -0.0744, 0.0]
    """

    def __init__(
        self,
        params: Params,
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        density: float = 0.01,
        window: int = 10,
        bits: int | None = 4,
        bucket_size: int = 512,
        rounding: str = "nearest",
        scope: str = "block",
        window_correction: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "density": density,
                "window": window,
                "bits": bits,
                "bucket_size": bucket_size,
                "rounding": rounding,
                "scope": scope,
                "window_correction": window_correction,
            },
        )
        self._shares: list[Future[None]] = []  # of this step, still running on other threads

    @staticmethod
    def _check(options: Options) -> None:
        check_common(options)
        _validate.non_negative(eps=options["eps"])
        _validate.rate(density=options["density"])
        _validate.count(window=options["window"], bucket_size=options["bucket_size"])
        _validate.one_of(_BITS, bits=options["bits"])
        _validate.one_of(_ROUNDINGS, rounding=options["rounding"])
        _validate.one_of(_SCOPES, scope=options["scope"])
        if not isinstance(options["window_correction"], bool):
            raise TypeError(
                f"Expected window_correction={options['window_correction']!r} to be True or False."
            )

    def _before_update(self) -> None:
        groups = [group for group in self.param_groups if group["scope"] == "global"]
        self._selected = self._select_among(groups) if groups else {}

    def _update_group(
        self, params: list[Tensor], noise_variance: Mapping[Tensor, Value], group: Options
    ) -> None:
        self._shares = []
        try:
            super()._update_group(params, noise_variance, group)
        finally:
            shares, self._shares = self._shares, []
            wait(shares)
        _finish(shares)

    def _update(
        self, p: Tensor, gradient: Tensor, noise_variance: Value, group: Options, state: State
    ) -> None:
        started(state, p, group)["step"] += 1
        if not p.numel():
            return
        theta, g = p.reshape(-1), gradient.reshape(-1)
        shifts = None
        if group["rounding"] == "stochastic" and group["bits"] is not None:
            everything = [other for each in self.param_groups for other in each["params"]]
            place = next(i for i, other in enumerate(everything) if other is p)
            shifts = Seed(0).generator("rounding", state["step"], place)  # public: it only rounds releases
        if group["scope"] == "global":
            step_selected(theta, g, self._selected.pop(p), group, state, shifts)
        elif _has_kernel(p, gradient, group, state):
            self._shares += _step_kernel(theta, g, group, state)
            increment_version(p)
            if not p.is_contiguous():
                _finish(self._shares)
        else:
            step_blocks(theta, g, group, state, shifts)
        if not p.is_contiguous():
            p.copy_(theta.view(p.shape))

    def _select_among(self, groups: list[dict[str, Any]]) -> dict[Tensor, Tensor]:
        """Computes (2) over all parameters of the groups; returns the selected entries of each parameter."""
        params = [(p, group) for group in groups for p in group["params"] if p.requires_grad]
        k = math.ceil(sum(group["density"] * p.numel() for p, group in params))
        magnitudes, entries = [], []
        for p, group in params:
            assert p.grad is not None
            started(self.state[p], p, group)
            a, work, _ = scratch_buffers(p, p.numel(), self.state[p])
            accumulate(p.grad.reshape(-1), self.state[p], 0, p.numel(), a, work)
            best = a[: p.numel()].abs_().topk(min(k, p.numel()), sorted=False)
            magnitudes.append(best.values.to(params[0][0].device))
            entries.append(best.indices)
        chosen = torch.zeros(sum(map(len, magnitudes)), dtype=torch.bool, device=magnitudes[0].device)
        chosen[torch.cat(magnitudes).topk(k, sorted=False).indices] = True
        parts = torch.split(chosen, [len(part) for part in magnitudes])
        return {
            p: best[part.to(best.device)] for (p, _), best, part in zip(params, entries, parts, strict=True)
        }


@functools.cache
def _kernel() -> ModuleType | None:
    """Returns the compiled step if Numba works. Imported at the first step, since that takes a second."""
    from adamas.rules import _micro_adam_kernel

    return _micro_adam_kernel if _micro_adam_kernel.available() else None


def _has_kernel(p: Tensor, gradient: Tensor, group: Options, state: State) -> bool:
    """Tells whether the compiled step serves this parameter and these options."""
    return (
        (group["scope"], group["bits"], group["rounding"]) == ("block", 4, "nearest")
        and type(p) in (Tensor, nn.Parameter)
        and p.device.type == "cpu"
        and p.dtype == gradient.dtype == torch.float32
        and (p.numel() <= BLOCK or BLOCK % state["size"] == 0)
        and fits(state, p.numel(), group)
        and _kernel() is not None
    )


def _step_kernel(theta: Tensor, g: Tensor, group: Options, state: State) -> "list[Future[None]]":
    """Does what `step_blocks` does in one compiled call; returns the shares that other threads still run."""
    kernel, n = _kernel(), theta.numel()
    assert kernel is not None
    b1, b2 = (row_weights(b, state["step"], group["window"]) for b in group["betas"])
    eps, rate = step_constants(group, state["step"], torch.float32)
    shares: list[Future[None]] = kernel.step(
        theta,
        g,
        state,
        (b1.numpy(), b2.numpy()),
        length=layout(n, group)[0],
        selected=selected_counts(n, group),
        margin=MARGIN,
        decay=decay_factor(group),
        eps=eps,
        rate=rate,
    )
    return shares


def _finish(shares: "list[Future[None]]") -> None:
    """Waits for other threads and raises their errors."""
    for share in shares:
        share.result()
