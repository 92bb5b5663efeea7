"""Distributions over all coordinates: histograms on a logarithmic axis, quartiles."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from adamas import _validate
from adamas.diagnostics._numbers import flat, mean
from adamas.diagnostics._parameters import moments_of

# A histogram leaves out the smallest 0.1% of the values, and all that is 15 decades below the largest.
_TAIL, _DECADES = 1e-3, 15


@torch.no_grad()
def histograms(rule: torch.optim.Optimizer, *, bins: int = 20) -> dict[str, Any] | None:
    """Returns the distributions of moments and updates over all coordinates, on a logarithmic axis.

    Args:
        rule: The optimizer.
        bins: Bins per power of 10. Histograms with the same `bins` share their edges.

    Returns:
        Histograms of |m_hat|; of v_hat, noise included; of v_hat - phi_hat before the floor; and of the
        magnitudes of the updates m_hat/sqrt(v_hat) and m_hat/denominator, without the learning rate; and the
        means of phi_hat and of the floor. A histogram holds log10 of the first `edge`, the `width` of a bin,
        `counts`, and the numbers of values `below` the first edge (the smallest 0.1%), `not_positive` and
        `not_finite`. None for a rule without moments.

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
        if p.requires_grad and (moments := moments_of(rule, p)) is not None
    ]
    if not known:
        return None
    subtracted = [flat(one.v_hat - one.phi_hat) for one, _ in known]
    return {
        "m_hat": histogram([flat(one.m_hat) for one, _ in known], bins, magnitude=True),
        "v_hat": histogram([flat(one.v_hat) for one, _ in known], bins),
        "v_corrected": histogram(subtracted, bins),
        "update_uncorrected": histogram(
            [flat(one.m_hat / one.v_hat.sqrt()) for one, _ in known], bins, magnitude=True
        ),
        "update": histogram([flat(one.m_hat / one.denominator) for one, _ in known], bins, magnitude=True),
        "noise_variance": mean((one.phi_hat, n) for one, n in known),
        "floor": mean((one.floor, n) for one, n in known),
    }


def histogram(parts: Iterable[np.ndarray], bins: int, *, magnitude: bool = False) -> dict[str, Any]:
    """Counts the values in each bin of log10, as in `histograms`; with `magnitude`, the absolute values."""
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


def statistics(parts: list[np.ndarray]) -> dict[str, float]:
    """Returns minimum, quartiles, maximum and mean of the finite values, and the number of the others."""
    everything = np.concatenate(parts or [np.empty(0)]).astype(np.float64)
    values = everything[np.isfinite(everything)]
    if not len(values):
        return {}
    names = ("min", "q1", "median", "q3", "max")
    quantiles = np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist()
    rest = {"mean": float(values.mean()), "not_finite": len(everything) - len(values)}
    return dict(zip(names, quantiles, strict=True)) | rest
