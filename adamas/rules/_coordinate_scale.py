r"""The clipping scale of AdaClip and MacAdam: how the noise is shared among the coordinates.

.. math:: b_j = \sqrt{\varsigma_j}\,\sqrt{\textstyle\sum_k \varsigma_k}

minimises the added noise, given estimated standard deviations :math:`\varsigma` of the coordinates of the
gradient (Pichapati et al., 2019, Theorem 2). The sum runs over all parameters of a model.

References:
    Venkatadheeraj Pichapati, Ananda Theertha Suresh, Felix X. Yu, Sashank J. Reddi, Sanjiv Kumar. "AdaCliP:
    Adaptive Clipping for Private SGD." 2019. arXiv:1908.07643.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from adamas import _validate
from adamas.geometry import Geometry, Value
from adamas.rules.base import Options, Params, Rule, State

# Values of each tensor that fit in the cache during one pass of an update.
_PART = 1 << 20


class CoordinateScale(Rule):
    """A rule that keeps `std`, and `std_sum` in float64, for each parameter once it has made a step.

    The rule must hold all parameters of the model: the sum runs over all groups.
    """

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        super().__init__(params, defaults)
        self._total = 0.0

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores a rule; a copied or loaded one recomputes its sum."""
        super().__setstate__(state)
        self._total = 0.0

    def geometry(self) -> Geometry:
        """Returns center and scale of the next step, from the releases so far."""
        std_total = self._std_total()
        center: dict[Tensor, Value] = {}
        scale: dict[Tensor, Value] = {}
        for group in self.param_groups:
            for p in group["params"]:
                if not p.requires_grad:
                    continue
                state = self.state.get(p)
                scale[p] = self._scale(p, group, std_total)
                if state:
                    center[p] = self._center(state, group)
        return Geometry(center or None, scale)

    @abstractmethod
    def _center(self, state: State, group: Options) -> Tensor:
        """Returns the center of a parameter that has made a step."""

    @abstractmethod
    def _first_std(self, group: Options) -> float:
        """Returns the standard deviation assumed for each coordinate of a parameter before its first step."""

    @abstractmethod
    def _first_scale(self, group: Options, std_total: float) -> float:
        """Returns the scale of a parameter before its first step."""

    def _before_update(self) -> None:
        self._total = self._std_total()

    def _scale(self, p: Tensor, group: Options, std_total: float) -> Value:
        state = self.state.get(p)
        if not state:
            return self._first_scale(group, std_total)
        result: Tensor = state["std"].sqrt().mul_(math.sqrt(std_total))
        return result

    def _std_total(self) -> float:
        """Sums the standard deviations over all coordinates of all parameters, in float64."""
        return math.fsum(
            self.state[p]["std_sum"] if self.state.get(p) else p.numel() * self._first_std(group)
            for group in self.param_groups
            for p in group["params"]
            if p.requires_grad
        )

    def _dimension(self) -> int:
        return max(1, sum(p.numel() for p in self.trainable()))


def cached_parts(*values: Value) -> Iterator[tuple[Any, ...]]:
    """Yields matching parts of tensors of one shape that fit in the cache; numbers stay as they are."""
    tensors = [value for value in values if isinstance(value, Tensor) and value.dim()]
    if not tensors or not all(t.is_contiguous() for t in tensors):
        yield values
        return
    flat = [v.view(-1) if isinstance(v, Tensor) and v.dim() else v for v in values]
    for i in range(0, max(1, tensors[0].numel()), _PART):
        yield tuple(v[i : i + _PART] if isinstance(v, Tensor) and v.dim() else v for v in flat)


def check_bounds(options: Options) -> None:
    """Raises unless the variance bounds and the first scale are valid."""
    h1, h2, b0 = options["h1"], options["h2"], options["b0"]
    _validate.positive(h1=h1, h2=h2)
    if h1 < torch.finfo(torch.float32).tiny:
        raise ValueError(f"Expected h1={h1!r} to be a normal float32 number.")
    if h1 > h2:
        raise ValueError(f"Expected h1={h1!r} <= h2={h2!r}.")
    if b0 is not None:
        _validate.positive(b0=b0)
