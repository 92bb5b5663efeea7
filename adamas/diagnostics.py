r"""What an optimizer did, read from its own state.

With the moments :math:`\hat m, \hat v, \hat\phi`, the floor :math:`\gamma'` and the denominator D of
`adamas.rules._adam_family`, sums over the coordinates of a parameter, or of all:

.. math::
    \text{on\_floor}          &= \tfrac1n\,\#\{\hat v - \hat\phi \le \gamma'\}                 \qquad (1) \\
    \text{noise\_share}       &= \textstyle\sum\hat\phi \,/\, \sum\hat v                       \qquad (2) \\
    \text{effective\_lr}      &= \eta / D \quad\text{(quantiles)}                              \qquad (3) \\
    \text{update\_rms}        &= \big(\tfrac1n\textstyle\sum (\eta\,\hat m/D)^2\big)^{1/2}     \qquad (4) \\
    \text{signal\_to\_noise}  &= \textstyle\sum\hat m^2 \,/\, \big(w_t \sum\hat\phi\big), \quad
    w_t = \frac{(1-\beta_1)(1+\beta_1^t)}{(1+\beta_1)(1-\beta_1^t)}                            \qquad (5) \\
    \text{center\_norm}       &= \|c/s\|_2                                                     \qquad (6)

:math:`w_t` is the sum of the squared weights with which :math:`\hat m_t` averages t gradients, so (5) has
mean 1 if there is nothing but noise, and is larger by the ratio of signal to noise otherwise. It is exact
for noise of constant variance, of which :math:`\hat\phi` is then the value.

Privacy: a rule's state is made of releases, so all of this is post-processing and costs nothing. The
exception is `RawMoments`, which sees gradients without noise.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from adamas import _validate
from adamas.geometry import Geometry, Value
from adamas.rules.base import Moments, Rule

QUANTILES = (0, 5, 25, 50, 75, 95, 100)
"""The levels at which a distribution is given, in percent."""

_RATIOS = ("on_floor", "noise_share", "update_rms", "signal_to_noise")

# Of the moments without noise, for a rule without decays of its own: torch's defaults.
_BETAS, _EPS = (0.9, 0.999), 1e-8

# What a histogram shows at most: all but the least 0.1%, and no more than this below the largest value.
_TAIL, _DECADES = 1e-3, 15

Names = Mapping[Tensor, str] | nn.Module
"""What parameters are called: a model, or names by parameter."""


@torch.no_grad()
def diagnose(
    rule: torch.optim.Optimizer, names: Names, *, geometry: Geometry | None = None
) -> dict[str, Any]:
    """Equations (1) to (6) after the last step, as plain numbers that JSON can hold.

    Args:
        rule: The optimizer. Of one without moments, such as SGD or torch's own, and before the first step,
            only the centre and the size of the state are known.
        names: The model, or a name for each of the rule's parameters.
        geometry: Where the next step clips; the rule's own, for a clip norm of 1, by default.

    Returns:
        "step"; "overall", for all parameters together; and "layers", by parameter. Each has coordinates,
        on_floor, noise_share, effective_lr, update_rms, signal_to_noise, state_bytes_per_parameter, and
        "overall" has center_norm. What is unknown, or not finite, is None; an overall value is over the
        parameters for which it is known. Learning rates are those that the rule has now, which a scheduler
        may have changed since the step.

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
    for name, p, group in _parameters(rule, names):
        state = rule.state.get(p, {})
        moments = _moments(rule, p)
        ratios = {} if moments is None else _ratios(moments, state, group)
        rate = [] if moments is None else [_flat(float(group["lr"]) / moments.denominator)]
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


@torch.no_grad()
def histograms(rule: torch.optim.Optimizer, *, bins: int = 20) -> dict[str, Any] | None:
    """Distributions over all coordinates, on a logarithmic axis.

    Args:
        rule: The optimizer.
        bins: Bins per power of 10. Their edges are the same for all histograms of as many bins.

    Returns:
        Histograms of |m_hat|; of v_hat, with the noise in it; of v_hat - phi_hat before the floor; and of the
        magnitudes of the updates m_hat/sqrt(v_hat) and m_hat/denominator, without the learning rate. Then the
        means of phi_hat and of the floor. Each histogram has log10 of the first `edge`, the `width` of a
        bin, `counts`, and how many values were `below` the first edge (the least 0.1%), 0 or negative
        (`not_positive`), and not finite. None for a rule without moments.

    Example:
        >>> import torch
        >>> from adamas import PrivateGradient, rules
        >>> p = torch.nn.Parameter(torch.zeros(3))
        >>> rule = rules.AdamBC([p], floor=1.0)
        >>> PrivateGradient({p: torch.tensor([1.0, 4.0, 5.0])}, {p: 9.0}).write_to(rule)
        >>> rule.step()
        >>> seen = histograms(rule, bins=1)
        >>> seen["v_hat"]["edge"], seen["v_hat"]["counts"]  # 1, 16 and 25
        (0.0, [1, 2])
        >>> seen["v_corrected"]["counts"], seen["v_corrected"]["not_positive"]  # 7, 16 and -8
        ([1, 1], 1)
    """
    _validate.count(bins=bins)
    known = [
        (moments, p.numel())
        for group in rule.param_groups
        for p in group["params"]
        if p.requires_grad and (moments := _moments(rule, p)) is not None
    ]
    if not known:
        return None
    subtracted = [_flat(one.v_hat - one.phi_hat) for one, _ in known]
    return {
        "m_hat": histogram([_flat(one.m_hat) for one, _ in known], bins, magnitude=True),
        "v_hat": histogram([_flat(one.v_hat) for one, _ in known], bins),
        "v_corrected": histogram(subtracted, bins),
        "update_uncorrected": histogram(
            [_flat(one.m_hat / one.v_hat.sqrt()) for one, _ in known], bins, magnitude=True
        ),
        "update": histogram([_flat(one.m_hat / one.denominator) for one, _ in known], bins, magnitude=True),
        "noise_variance": _mean((one.phi_hat, n) for one, n in known),
        "floor": _mean((one.floor, n) for one, n in known),
    }


class RawMoments:
    """Averages of clipped mean gradients *without* noise, to compare the private ones with.

    Privacy: none. A run that keeps them records each gradient as a release without noise, so that its
    epsilon is infinite. They are in no saved state, and start anew in a resumed run.

    Args:
        rule: The optimizer whose decays they take; (0.9, 0.999) if it has none.
    """

    def __init__(self, rule: torch.optim.Optimizer) -> None:
        self._rule = rule
        self._steps = 0
        self._raw: dict[Tensor, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def add(self, raw_mean: Mapping[Tensor, Tensor]) -> None:
        """Takes the clipped mean gradient of a step before its noise."""
        self._steps += 1
        for group in self._rule.param_groups:
            b1, b2 = group.get("betas", _BETAS)
            for p in group["params"]:
                if p not in raw_mean:
                    continue
                g = raw_mean[p].to(torch.float64)  # squares of values without noise leave float32's range
                m, v = self._raw.setdefault(p, (torch.zeros_like(g), torch.zeros_like(g)))
                m.lerp_(g, 1 - b1)
                v.mul_(b2).addcmul_(g, g, value=1 - b2)

    @torch.no_grad()
    def compare(self, names: Names, *, histograms: bool = False, bins: int = 20) -> dict[str, Any]:
        """The moments without noise beside the private ones. Not private.

        Returns:
            "overall" and "layers", each with the quantiles of v_hat without noise; `moment_cosine`, the
            cosine of the angle between m_hat with and without noise; and `update_cosine`, that between the
            rule's update and the one that Adam would make without noise. With `histograms`, those of
            m_hat, v_hat and update without noise, and "statistics": minimum, quartiles, maximum and mean of
            moments and updates without noise, with it, and corrected. The DP-AdamBC paper's Table 2 has
            them as "m", "private m", "v", "private v", "corrected v", "private m over v" (its clean update
            takes the private m), "uncorrected update" and "private update".
        """
        layers, seen = {}, []
        for name, p, group in _parameters(self._rule, names):
            if p in self._raw:
                seen.append(self._pairs(p, group))
                layers[name] = _comparison(seen[-1:])
        result: dict[str, Any] = {"overall": _comparison(seen), "layers": layers}
        if histograms:
            result["histograms"] = {
                "m_hat": histogram([one["m"] for one in seen], bins, magnitude=True),
                "v_hat": histogram([one["v"] for one in seen], bins),
                "update": histogram([one["update"] for one in seen], bins, magnitude=True),
            }
            result["statistics"] = {
                name: _statistics([one[name] for one in seen if name in one]) for name in _MOMENT_NAMES
            }
        return result

    def _pairs(self, p: Tensor, group: dict[str, Any]) -> dict[str, np.ndarray]:
        """Moments and update of one parameter without noise, and the private ones if there are any."""
        b1, b2 = group.get("betas", _BETAS)
        m, v = self._raw[p]
        m_hat, v_hat = m / (1 - b1**self._steps), v / (1 - b2**self._steps)
        result = {"m": m_hat, "v": v_hat, "update": m_hat / (v_hat.sqrt() + group.get("eps", _EPS))}
        moments = _moments(self._rule, p)
        if moments is not None:
            result["private m"] = moments.m_hat
            result["private v"] = torch.as_tensor(moments.v_hat).expand_as(moments.m_hat)
            result["corrected v"] = moments.denominator.square().expand_as(moments.m_hat)
            result["private update"] = moments.m_hat / moments.denominator
            result["private m over v"] = moments.m_hat / v_hat.sqrt()
            result["uncorrected update"] = moments.m_hat / result["private v"].sqrt()
        return {name: _flat(value) for name, value in result.items()}


_MOMENT_NAMES = (
    "m",
    "private m",
    "v",
    "private v",
    "corrected v",
    "update",
    "private m over v",
    "uncorrected update",
    "private update",
)


def _statistics(parts: list[np.ndarray]) -> dict[str, float]:
    """Minimum, quartiles, maximum and mean of all finite values, and how many are not."""
    everything = np.concatenate(parts or [np.empty(0)]).astype(np.float64)
    values = everything[np.isfinite(everything)]
    if not len(values):
        return {}
    names = ("min", "q1", "median", "q3", "max")
    quantiles = np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist()
    rest = {"mean": float(values.mean()), "not_finite": len(everything) - len(values)}
    return dict(zip(names, quantiles, strict=True)) | rest


def histogram(parts: Iterable[np.ndarray], bins: int, *, magnitude: bool = False) -> dict[str, Any]:
    """How many values lie in each bin of log10, see `histograms`; with `magnitude`, absolute values."""
    values = np.concatenate([np.asarray(part, dtype=np.float64) for part in parts] or [np.empty(0)])
    finite = values[np.isfinite(values)]
    if magnitude:
        finite = np.abs(finite)
    logs = np.log10(finite[finite > 0])
    result = {
        "edge": 0.0,
        "width": 1 / bins,
        "counts": [],
        "below": 0,
        "not_positive": len(finite) - len(logs),
        "not_finite": len(values) - len(finite),
    }
    if len(logs):
        cells = np.floor(logs * bins).astype(np.int64)
        first = max(int(np.quantile(cells, _TAIL, method="lower")), int(cells.max()) - _DECADES * bins)
        shown = cells[cells >= first]
        result |= {
            "edge": first / bins,
            "counts": np.bincount(shown - first).tolist(),
            "below": len(cells) - len(shown),
        }
    return result


def _parameters(rule: torch.optim.Optimizer, names: Names) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """The rule's trainable parameters with names and groups."""
    if isinstance(names, nn.Module):
        names = {p: name for name, p in names.named_parameters()}
    for group in rule.param_groups:
        for p in group["params"]:
            if not p.requires_grad:
                continue
            if p not in names:
                raise ValueError(
                    f"Expected a name for each parameter of the rule, found none for one of shape "
                    f"{tuple(p.shape)}. Give the model that the rule was made for."
                )
            yield names[p], p, group


def _moments(rule: torch.optim.Optimizer, p: Tensor) -> Moments | None:
    return rule.moments(p) if isinstance(rule, Rule) else None


def _ratios(
    moments: Moments, state: Mapping[str, Any], group: dict[str, Any]
) -> dict[str, tuple[float, float]]:
    """Equations (1), (2), (4) and (5), as numerator and denominator so that parameters can be summed."""
    n = moments.m_hat.numel()
    ratios: dict[str, tuple[float, float]] = {}
    if moments.floor is not None:
        # The denominator was clamped; v_hat - phi_hat would be rounded once more.
        d = moments.denominator
        least = torch.as_tensor(moments.floor, dtype=d.dtype, device=d.device).sqrt()
        ratios["on_floor"] = (float((d <= least).sum()), n)  # (1)
    step = moments.m_hat / moments.denominator * float(group["lr"])
    ratios["update_rms"] = (_squares(step), n)  # (4)
    noise = _sum(moments.phi_hat, n)
    ratios["noise_share"] = (noise, _sum(moments.v_hat, n))  # (2)
    if "step" in state and "betas" in group:
        weight = squared_weights(int(state["step"]), group["betas"][0])
        ratios["signal_to_noise"] = (_squares(moments.m_hat), weight * noise)  # (5)
    return ratios


def squared_weights(step: int, beta: float) -> float:
    r"""The variance of a bias-corrected moving average of so many independent values of variance 1.

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
    """What is said of one parameter, or of all, given the terms of each sum."""
    values: dict[str, float | None] = {}
    for name in _RATIOS:
        pairs = ratios.get(name, [])
        values[name] = _ratio(math.fsum(a for a, _ in pairs), math.fsum(b for _, b in pairs))
    root = values["update_rms"]
    return {
        "coordinates": n,
        "on_floor": values["on_floor"],
        "noise_share": values["noise_share"],
        "effective_lr": _quantiles(rates),  # (3)
        "update_rms": None if root is None else math.sqrt(root),
        "signal_to_noise": values["signal_to_noise"],
        "state_bytes_per_parameter": _ratio(size, n),
    }


def _comparison(parts: list[dict[str, np.ndarray]]) -> dict[str, Any]:
    return {
        "v_hat": _quantiles([part["v"] for part in parts]),
        "moment_cosine": _cosine([(part["m"], part["private m"]) for part in parts if "private m" in part]),
        "update_cosine": _cosine(
            [(part["update"], part["private update"]) for part in parts if "private update" in part]
        ),
    }


def _cosine(pairs: list[tuple[np.ndarray, np.ndarray]]) -> float | None:
    product, left, right = (
        math.fsum(float(np.dot(a.astype(np.float64), b.astype(np.float64))) for a, b in chosen)
        for chosen in (pairs, [(a, a) for a, _ in pairs], [(b, b) for _, b in pairs])
    )
    return _ratio(product, math.sqrt(left) * math.sqrt(right)) if left >= 0 and right >= 0 else None


def _center_norm(geometry: Geometry) -> float | None:
    """Equation (6)."""
    return _finite(math.sqrt(math.fsum(map(geometry.center_square, geometry.center or {}))))


def _state_bytes(state: Any) -> int:
    """Bytes of the tensors in a state, each storage once."""
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


def _quantiles(parts: list[np.ndarray]) -> dict[str, float | None] | None:
    """Quantiles of all parts together; None of nothing."""
    values = np.concatenate(parts) if parts else np.empty(0)
    if not len(values):
        return None
    # Next to an infinite value there is nothing to interpolate.
    method: Literal["linear", "lower"] = "linear" if np.isfinite(values).all() else "lower"
    answer = np.quantile(values, np.array(QUANTILES) / 100, method=method)
    return {f"{level}%": _finite(float(value)) for level, value in zip(QUANTILES, answer, strict=True)}


def _mean(values: Iterable[tuple[Value | None, int]]) -> float | None:
    known = [(_sum(value, n), n) for value, n in values if value is not None]
    return _ratio(math.fsum(total for total, _ in known), sum(n for _, n in known))


def _sum(value: Value, n: int) -> float:
    """The sum of n values, or of n times the same."""
    if isinstance(value, Tensor) and value.dim():
        return float(torch.sum(value, dtype=torch.float64))
    return float(value) * n


def _squares(values: Tensor) -> float:
    return float(torch.sum(values.to(torch.float64).square()))


def _flat(values: Tensor) -> np.ndarray:
    if values.dtype not in (torch.float32, torch.float64):
        values = values.float()
    array: np.ndarray = values.detach().reshape(-1).cpu().numpy()
    return array


def _ratio(numerator: float, denominator: float) -> float | None:
    return _finite(numerator / denominator) if denominator else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
