r"""The last step of an optimizer in a few numbers per parameter.

The moments :math:`\hat m, \hat v, \hat\phi`, the floor :math:`\gamma'` and the denominator D are those of
`adamas.rules._adam_family`. Sums run over the coordinates of one parameter, or of all:

.. math::
    \text{on\_floor}          &= \tfrac1n\,\#\{\hat v - \hat\phi \le \gamma'\}                 \qquad (1) \\
    \text{noise\_share}       &= \textstyle\sum\hat\phi \,/\, \sum\hat v                       \qquad (2) \\
    \text{effective\_lr}      &= \eta / D \quad\text{(quantiles)}                              \qquad (3) \\
    \text{update\_rms}        &= \big(\tfrac1n\textstyle\sum (\eta\,\hat m/D)^2\big)^{1/2}     \qquad (4) \\
    \text{signal\_to\_noise}  &= \textstyle\sum\hat m^2 \,/\, \big(w_t \sum\hat\phi\big), \quad
    w_t = \frac{(1-\beta_1)(1+\beta_1^t)}{(1+\beta_1)(1-\beta_1^t)}                            \qquad (5) \\
    \text{center\_norm}       &= \|c/s\|_2                                                     \qquad (6)

:math:`w_t` is the sum of the squared weights with which :math:`\hat m_t` averages t gradients. So (5) has
mean 1 for noise alone, and signal adds the ratio of signal to noise. It is exact while the noise variance is
constant; :math:`\hat\phi` then equals it.

References:
    Qiaoyue Tang, Frederick Shpilevskiy, Mathias Lécuyer. "DP-AdamBC: Your DP-Adam Is Actually DP-SGD (Unless
    You Apply Bias Correction)." AAAI 2024. arXiv:2312.14334.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adamas import _validate
from adamas.diagnostics._numbers import finite, flat, quantiles, ratio, sum_of_squares, total
from adamas.diagnostics._parameters import Names, moments_of, named_parameters
from adamas.geometry import Geometry
from adamas.rules.base import Moments, Rule

_RATIOS = ("on_floor", "noise_share", "update_rms", "signal_to_noise")


@torch.no_grad()
def diagnose(
    rule: torch.optim.Optimizer, names: Names, *, geometry: Geometry | None = None
) -> dict[str, Any]:
    """Computes (1) to (6) after the last step, as plain numbers that JSON can hold.

    Args:
        rule: The optimizer. Without moments, as in SGD, in torch's own optimizers and before the first step,
            only the center and the size of the state are known.
        names: The model, or a name for each of the rule's parameters.
        geometry: Where the next step clips. None takes the rule's own, for a clip norm of 1.

    Returns:
        "step"; "overall", for all parameters together; and "layers", by parameter. Each has coordinates,
        on_floor, noise_share, effective_lr, update_rms, signal_to_noise, state_bytes_per_parameter, and
        "overall" has center_norm. A value that is unknown or not finite is None; an overall value covers the
        parameters for which it is known. Learning rates are the rule's current ones, which a scheduler may
        have changed since the step.

    Example:
        >>> import torch
        >>> from adamas import PrivateGradient, rules
        >>> from adamas.diagnostics import diagnose
        >>> p = torch.nn.Parameter(torch.zeros(2))
        >>> rule = rules.AdamBC([p], lr=0.1, floor=1.0)
        >>> PrivateGradient({p: torch.tensor([5.0, 3.0])}, {p: 9.0}).write_to(rule)
        >>> rule.step()
        >>> seen = diagnose(rule, {p: "weight"})["layers"]["weight"]
        >>> seen["on_floor"]  # 25 - 9 is above the floor of 1, 9 - 9 is not
        0.5
        >>> round(seen["noise_share"], 4), round(seen["signal_to_noise"], 4)  # 18/34, 34/18
        (0.5294, 1.8889)
        >>> round(seen["effective_lr"]["0%"], 4), round(seen["effective_lr"]["100%"], 4)
        (0.025, 0.1)
    """
    layers: dict[str, Any] = {}
    sums: dict[str, list[tuple[float, float]]] = {name: [] for name in _RATIOS}
    rates: list[np.ndarray] = []
    coordinates, size, step = 0, 0, None
    for name, p, group in named_parameters(rule, names):
        state = rule.state.get(p, {})
        moments = moments_of(rule, p)
        ratios = {} if moments is None else _ratios(moments, state, group)
        rate = [] if moments is None else [flat(float(group["lr"]) / moments.denominator)]
        bytes_ = _state_bytes(state)
        layers[name] = _entry(p.numel(), {k: [v] for k, v in ratios.items()}, rate, bytes_)
        for key, pair in ratios.items():
            sums[key].append(pair)
        rates += rate
        coordinates, size = coordinates + p.numel(), size + bytes_
        if "step" in state:
            step = max(step or 0, int(state["step"]))
    if geometry is None and isinstance(rule, Rule):
        geometry = rule.geometry()
    overall = _entry(coordinates, sums, rates, size)
    overall["center_norm"] = 0.0 if geometry is None else _center_norm(geometry)
    return {"step": step, "overall": overall, "layers": layers}


def _ratios(
    moments: Moments, state: Mapping[str, Any], group: dict[str, Any]
) -> dict[str, tuple[float, float]]:
    """Returns (1), (2), (4) and (5) as numerator and denominator, so that parameters can be summed."""
    n = moments.m_hat.numel()
    ratios: dict[str, tuple[float, float]] = {}
    if moments.floor is not None:
        # Compares the clamped denominator, since v_hat - phi_hat would round once more.
        d = moments.denominator
        least = torch.as_tensor(moments.floor, dtype=d.dtype, device=d.device).sqrt()
        ratios["on_floor"] = (float((d <= least).sum()), n)  # (1)
    step = moments.m_hat / moments.denominator * float(group["lr"])
    ratios["update_rms"] = (sum_of_squares(step), n)  # (4)
    noise = total(moments.phi_hat, n)
    ratios["noise_share"] = (noise, total(moments.v_hat, n))  # (2)
    if "step" in state and "betas" in group:
        weight = squared_weights(int(state["step"]), group["betas"][0])
        ratios["signal_to_noise"] = (sum_of_squares(moments.m_hat), weight * noise)  # (5)
    return ratios


def squared_weights(step: int, beta: float) -> float:
    r"""Returns the variance of a bias-corrected moving average of `step` independent values of variance 1.

    .. math:: w_t = \sum_{i=1}^t \Big(\frac{(1-\beta)\beta^{t-i}}{1-\beta^t}\Big)^2

    Example:
        >>> [round(squared_weights(t, 0.9), 4) for t in (1, 2, 1000)]
        [1.0, 0.5014, 0.0526]
    """
    _validate.count(step=step)
    _validate.decay(beta=beta)
    return (1 - beta) * (1 + beta**step) / ((1 + beta) * (1 - beta**step))


def _entry(
    n: int, ratios: Mapping[str, list[tuple[float, float]]], rates: list[np.ndarray], size: int
) -> dict[str, Any]:
    """Returns the entry of one parameter, or of all, from the terms of each sum."""
    values: dict[str, float | None] = {}
    for name in _RATIOS:
        pairs = ratios.get(name, [])
        values[name] = ratio(math.fsum(a for a, _ in pairs), math.fsum(b for _, b in pairs))
    root = values["update_rms"]
    return {
        "coordinates": n,
        "on_floor": values["on_floor"],
        "noise_share": values["noise_share"],
        "effective_lr": quantiles(rates),  # (3)
        "update_rms": None if root is None else math.sqrt(root),
        "signal_to_noise": values["signal_to_noise"],
        "state_bytes_per_parameter": ratio(size, n),
    }


def _center_norm(geometry: Geometry) -> float | None:
    """Computes (6)."""
    return finite(math.sqrt(math.fsum(map(geometry.center_square, geometry.center or {}))))


def _state_bytes(state: Any) -> int:
    """Counts the bytes of the tensors in a state, each storage once."""
    return sum({s.data_ptr(): s.nbytes() for s in _storages(state)}.values())


def _storages(value: Any) -> Iterator[torch.UntypedStorage]:
    if isinstance(value, Tensor):
        yield value.untyped_storage()
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _storages(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _storages(item)
