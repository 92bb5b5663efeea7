r"""The arithmetic that Adam, AdamW and their bias-corrected forms share.

.. math::
    m_t         &= \beta_1 m_{t-1} + (1-\beta_1)\tilde g_t                      \qquad (1) \\
    v_t         &= \beta_2 v_{t-1} + (1-\beta_2)\tilde g_t^2                    \qquad (2) \\
    \phi_t      &= \beta_2 \phi_{t-1} + (1-\beta_2)\,\mathrm{Var}(\tilde g_t)   \qquad (3) \\
    \hat m_t    &= m_t/(1-\beta_1^t), \quad
    \hat v_t     = v_t/(1-\beta_2^t), \quad
    \hat\phi_t   = \phi_t/(1-\beta_2^t)                                         \qquad (4) \\
    D_t         &= \sqrt{\hat v_t} + \gamma
                   \;\text{ or }\; \sqrt{\max(\hat v_t - \hat\phi_t, \gamma')}  \qquad (5) \\
    \theta_t    &= (1 - \eta\lambda)\theta_{t-1} - \eta\,\hat m_t / D_t         \qquad (6)

With a floor :math:`\gamma'` the buffer `v` holds :math:`v_t - \phi_t`, which follows (2) with
:math:`\tilde g_t^2 - \mathrm{Var}(\tilde g_t)` instead of :math:`\tilde g_t^2`.

References:
    Diederik P. Kingma, Jimmy Ba. "Adam: A Method for Stochastic Optimization." ICLR 2015. arXiv:1412.6980.

    Qiaoyue Tang, Frederick Shpilevskiy, Mathias Lécuyer. "DP-AdamBC: Your DP-Adam Is Actually DP-SGD (Unless
    You Apply Bias Correction)." AAAI 2024. arXiv:2312.14334.

    Jay Chooi, Kevin Cong, Russell Li, Lillian Sun. "DP-AdamW: Investigating Decoupled Weight Decay and Bias
    Correction in Private Deep Learning." 2025. arXiv:2511.07843.
"""

import functools
import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from adamas import _validate
from adamas._numerics.sums import accumulation_dtype
from adamas.geometry import Value
from adamas.rules.base import Moments, Options, Rule, State
from adamas.theory import LEAST_FLOOR, automatic_floor, second_moment_deviation

_EPS_PLACEMENTS = ("outside", "inside")

# Values per part, so that a part of all five tensors stays in the cache: 5 x 3 MB of float32.
_PART = 3 << 18

_FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")


class AdamFamily(Rule):
    """Adam. In a group with a `floor`, the noise's share of the second moment is subtracted."""

    _scratch: Tensor | None = None  # reused from step to step, not part of the state

    def moments(self, p: Tensor) -> Moments | None:
        """See `Rule.moments`."""
        state = self.state.get(p)
        if not state:
            return None
        group = next(g for g in self.param_groups if any(q is p for q in g["params"]))
        b1, b2 = group["betas"]
        step = state["step"]
        phi_hat: Value = state["phi"] / (1 - b2**step)
        floor = _floor(group, phi_hat, step)
        v_hat = state["v"] / (1 - b2**step)
        denominator = _denominator(v_hat.clone(), floor, group)
        if floor is not None:
            v_hat.add_(_correction(group) * phi_hat)
        return Moments(state["m"] / (1 - b1**step), v_hat, phi_hat, floor, denominator)

    def _update_group(
        self, params: list[Tensor], noise_variance: Mapping[Tensor, Value], group: Options
    ) -> None:
        alike: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = {}
        others = []
        for p in params:
            state = _started(self.state[p], p)
            state["step"] += 1
            _average(state, noise_variance[p], group)  # (3)
            if _has_kernel(p, state, group):
                alike.setdefault((state["step"], p.dtype, p.device), []).append(p)
            else:
                others.append(p)
        if _correction(group) != 1:
            noise_variance = {p: _correction(group) * noise_variance[p] for p in params}
        for (step, _, _), members in alike.items():
            if group.get("floor") is None:
                _fused([self._buffers(p) for p in members], [], group, step, group["eps"])
            else:
                self._corrected(members, noise_variance, group)
        super()._update_group(others, noise_variance, group)

    def _corrected(
        self, params: list[Tensor], noise_variance: Mapping[Tensor, Value], group: Options
    ) -> None:
        """Computes (1), (2), the right form of (5), and (6)."""
        fast = []
        for p in params:
            if _is_compiled(p, noise_variance[p], self.state[p]):
                fast.append(p)
            else:
                self._step_fused(p, noise_variance[p], group)
        loops = kernel() if fast else None
        if loops is not None:  # one pass over memory
            (b1, b2), step = group["betas"], self.state[fast[0]]["step"]
            decay = 1 - group["lr"] * group["weight_decay"]
            rate = group["lr"] * math.sqrt(1 - b2**step) / (1 - b1**step)
            settings = (group["betas"], *_scaled_floor(group, step), decay, rate)
            loops.make(
                [
                    loops.call(
                        [t.view(-1) for t in self._buffers(p)],
                        noise_variance[p],
                        self.state[p]["phi"],
                        *settings,
                    )
                    for p in fast
                ]
            )
            increment_version(fast)

    def _step_fused(self, p: Tensor, variance: Value, group: Options) -> None:
        """Steps with torch's AMSGrad kernel, whose running maximum starts from the floor at every step.

        The noise variance that (2) does not subtract is subtracted before.
        """
        b2, step, phi = group["betas"][1], self.state[p]["step"], self.state[p]["phi"]
        deviation, least = _scaled_floor(group, step)
        scratch = self._kept_scratch(p)
        tensors = [t.view(-1) for t in self._buffers(p)]
        for i in range(0, p.numel(), _PART):
            part = slice(i, i + _PART)
            buffers = [t[part] for t in tensors]
            floor = scratch[: len(buffers[0])]
            buffers[3].sub_(_part(variance, part), alpha=(1 - b2) / b2)
            if isinstance(phi, Tensor):
                floor.copy_(phi.reshape(-1)[part]).mul_(deviation).clamp_(min=least)
            else:
                floor.fill_(max(deviation * phi, least))
            _fused([buffers], [floor], group, step, 0.0)

    def _kept_scratch(self, like: Tensor) -> Tensor:
        size, kept = min(_PART, like.numel()), self._scratch
        if kept is None or len(kept) < size or (kept.dtype, kept.device) != (like.dtype, like.device):
            self._scratch = kept = torch.empty(size, dtype=like.dtype, device=like.device)
        return kept

    def _buffers(self, p: Tensor) -> list[Tensor]:
        assert p.grad is not None
        state = self.state[p]
        return [p, p.grad, state["m"], state["v"]]

    def _update(
        self, p: Tensor, gradient: Tensor, noise_variance: Value, group: Options, state: State
    ) -> None:
        """Computes (1), (2) and (4) to (6) in place, for parameters that no kernel serves."""
        b1, b2 = group["betas"]
        m, v, step = state["m"], state["v"], state["step"]
        g = gradient.to(m.dtype)
        m.lerp_(g, 1 - b1)  # (1)
        v.mul_(b2).addcmul_(g, g, value=1 - b2)  # (2)
        floor = None
        if group.get("floor") is not None:
            v.sub_(noise_variance, alpha=1 - b2)
            floor = _floor(group, state["phi"] / (1 - b2**step), step)
        denominator = _denominator(v / (1 - b2**step), floor, group)
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.add_(torch.div(m, denominator, out=denominator), alpha=-group["lr"] / (1 - b1**step))  # (6)


def _started(state: State, p: Tensor) -> dict[str, Any]:
    """Returns the state of a parameter, and fills it at the first step."""
    if not state:
        dtype = accumulation_dtype(p.dtype)
        state["step"] = 0
        state["m"] = torch.zeros_like(p, dtype=dtype)
        state["v"] = torch.zeros_like(p, dtype=dtype)
        state["phi"] = 0.0
    return state


def _average(state: State, variance: Value, group: Options) -> None:
    """Computes (3). If nothing is subtracted, a variance per coordinate is averaged to one number."""
    phi, b2 = state["phi"], group["betas"][1]
    if group.get("floor") is None and isinstance(variance, Tensor):
        variance = float(variance.mean()) if variance.numel() else 0.0
    if isinstance(phi, Tensor):
        phi.lerp_(torch.as_tensor(variance, dtype=phi.dtype, device=phi.device), 1 - b2)
    elif isinstance(variance, Tensor):
        state["phi"] = (variance.to(state["m"].dtype) * (1 - b2)).add_(b2 * phi)
    else:
        state["phi"] = b2 * phi + (1 - b2) * variance


def _correction(group: Options) -> float:
    """Returns the multiple of the noise variance to subtract; 1 unless an `AdamBC` has another."""
    return float(group.get("correction", 1.0))


def _floor(group: Options, phi_hat: Value, step: int) -> Value | None:
    """Returns the floor of a step; None if nothing is subtracted."""
    floor: Value | None = group.get("floor")
    if group.get("floor") == "auto":
        return automatic_floor(step, phi_hat, group["betas"][1])
    return floor


def _scaled_floor(group: Options, step: int) -> tuple[float, float]:
    r"""Returns the floor times :math:`1-\beta_2^t`, as a multiple of the average (3) and a lower bound."""
    b2 = group["betas"][1]
    rest = 1 - b2**step
    if group["floor"] == "auto":
        return second_moment_deviation(step, b2), LEAST_FLOOR * rest
    return 0.0, group["floor"] * rest


@functools.cache
def kernel() -> ModuleType | None:
    """Returns the compiled step if Numba works. Imported at the first step, since that takes a second."""
    from adamas.rules import _adam_kernel

    return _adam_kernel if _adam_kernel.available() else None


def _is_compiled(p: Tensor, variance: Value, state: State) -> bool:
    """Tells whether the compiled step serves a parameter that torch's kernel serves."""
    others = [t for t in (variance, state["phi"]) if isinstance(t, Tensor)]
    return len(others) != 1 and has_loop(p, *others)  # 1 if the variance changed between number and tensor


def has_loop(*tensors: Tensor) -> bool:
    """Tells whether compiled loops can run over these tensors."""
    return (
        all(
            t.device.type == "cpu"
            and t.dtype == torch.float32
            and t.shape == tensors[0].shape
            and t.is_contiguous()
            and type(t) in (Tensor, torch.nn.Parameter)
            for t in tensors
        )
        and kernel() is not None
    )


def _denominator(v_hat: Tensor, floor: Value | None, group: Options) -> Tensor:
    """Computes (5) in place; with a floor, the noise's share is already subtracted from `v_hat`."""
    if floor is not None:
        return v_hat.clamp_(min=floor).sqrt_()
    if group["eps_placement"] == "inside":
        return v_hat.add_(group["eps"]).sqrt_()
    return v_hat.sqrt_().add_(group["eps"])


def _has_kernel(p: Tensor, state: State, group: Options) -> bool:
    """Tells whether torch's fused Adam serves this parameter."""
    return (
        p.grad is not None
        and p.grad.dtype == state["m"].dtype == p.dtype
        and all(t.is_contiguous() for t in (p, p.grad, state["m"], state["v"]))
        and p.device.type in _FUSED_DEVICES
        and p.numel() > 0
        and (group.get("floor") is None or group["betas"][1] > 0)
        and group.get("eps_placement") != "inside"
    )


def _fused(buffers: list[list[Tensor]], maxima: list[Tensor], group: Options, step: int, eps: float) -> None:
    """Runs the kernel of `torch.optim.AdamW(fused=True)` on parameters, gradients and both moments."""
    b1, b2 = group["betas"]
    params, gradients, ms, vs = map(list, zip(*buffers, strict=True))
    torch._fused_adamw_(
        params,
        gradients,
        ms,
        vs,
        maxima,
        [torch.tensor(float(step), device=params[0].device)] * len(params),
        lr=group["lr"],
        beta1=b1,
        beta2=b2,
        weight_decay=group["weight_decay"],
        eps=eps,
        amsgrad=bool(maxima),
        maximize=False,
    )


def _part(value: Value, part: slice) -> Value:
    return value.reshape(-1)[part] if isinstance(value, Tensor) and value.dim() else value


def check_common(options: Options) -> None:
    """Raises unless the hyperparameters common to the family are valid."""
    _validate.non_negative(lr=options["lr"], weight_decay=options["weight_decay"])
    _validate.decays(betas=options["betas"])


def check_eps(options: Options) -> None:
    """Raises unless the hyperparameters of the left form of (5) are valid."""
    _validate.non_negative(eps=options["eps"])
    _validate.one_of(_EPS_PLACEMENTS, eps_placement=options["eps_placement"])


def check_floor(options: Options) -> None:
    """Raises unless the floor of the right form of (5) is valid."""
    floor = options["floor"]
    if isinstance(floor, str):
        if floor != "auto":
            raise ValueError(f"Expected floor={floor!r} to be 'auto' or a number > 0.")
    else:
        _validate.positive(floor=floor)
