"""Moments of gradients without noise, to compare with the private ones. Not private."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adamas.diagnostics._numbers import flat, quantiles, ratio
from adamas.diagnostics._parameters import Names, moments_of, named_parameters
from adamas.diagnostics.distributions import histogram, statistics

# Torch's defaults, for a rule without decays or eps of its own.
_BETAS, _EPS = (0.9, 0.999), 1e-8

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


class RawMoments:
    """Moments of clipped mean gradients *without* noise, to compare with the private ones.

    Privacy: none. A run that keeps them records each gradient as a release without noise, so that its
    epsilon is infinite. They are never saved: a resumed run starts them at 0.

    Args:
        rule: The optimizer, whose decays are used; (0.9, 0.999) if it has none.
    """

    def __init__(self, rule: torch.optim.Optimizer) -> None:
        self._rule = rule
        self._steps = 0
        self._raw: dict[Tensor, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def add(self, raw_mean: Mapping[Tensor, Tensor]) -> None:
        """Adds the clipped mean gradient of a step, before its noise."""
        self._steps += 1
        for group in self._rule.param_groups:
            b1, b2 = group.get("betas", _BETAS)
            for p in group["params"]:
                if p not in raw_mean:
                    continue
                g = raw_mean[p].to(torch.float64)  # squares without noise underflow float32
                m, v = self._raw.setdefault(p, (torch.zeros_like(g), torch.zeros_like(g)))
                m.lerp_(g, 1 - b1)
                v.mul_(b2).addcmul_(g, g, value=1 - b2)

    @torch.no_grad()
    def compare(self, names: Names, *, histograms: bool = False, bins: int = 20) -> dict[str, Any]:
        """Compares the moments without noise with the private ones. Not private.

        Returns:
            "overall" and "layers", each with the quantiles of v_hat without noise; `moment_cosine`, the
            cosine of the angle between m_hat with and without noise; and `update_cosine`, the cosine between
            the rule's update and Adam's update without noise. With `histograms`, also those of m_hat, v_hat
            and update without noise, and "statistics": minimum, quartiles, maximum and mean of moments and
            updates without noise, with it, and corrected. The DP-AdamBC paper's Table 2 has them as "m",
            "private m", "v", "private v", "corrected v", "private m over v" (its clean update takes the
            private m), "uncorrected update" and "private update".
        """
        layers, seen = {}, []
        for name, p, group in named_parameters(self._rule, names):
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
                name: statistics([one[name] for one in seen if name in one]) for name in _MOMENT_NAMES
            }
        return result

    def _pairs(self, p: Tensor, group: dict[str, Any]) -> dict[str, np.ndarray]:
        """Returns moments and update of a parameter without noise, and the private ones if there are any."""
        b1, b2 = group.get("betas", _BETAS)
        m, v = self._raw[p]
        m_hat, v_hat = m / (1 - b1**self._steps), v / (1 - b2**self._steps)
        result = {"m": m_hat, "v": v_hat, "update": m_hat / (v_hat.sqrt() + group.get("eps", _EPS))}
        moments = moments_of(self._rule, p)
        if moments is not None:
            result["private m"] = moments.m_hat
            result["private v"] = torch.as_tensor(moments.v_hat).expand_as(moments.m_hat)
            result["corrected v"] = moments.denominator.square().expand_as(moments.m_hat)
            result["private update"] = moments.m_hat / moments.denominator
            result["private m over v"] = moments.m_hat / v_hat.sqrt()
            result["uncorrected update"] = moments.m_hat / result["private v"].sqrt()
        return {name: flat(value) for name, value in result.items()}


def _comparison(parts: list[dict[str, np.ndarray]]) -> dict[str, Any]:
    return {
        "v_hat": quantiles([part["v"] for part in parts]),
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
    return ratio(product, math.sqrt(left) * math.sqrt(right)) if left >= 0 and right >= 0 else None
