r"""The geometry in which gradients are clipped: a center and a scale.

An example's gradient :math:`g` is whitened, clipped to the unit ball and summed:

.. math::
    u = (g - c) / s, \qquad \bar u = u / \max(1, \|u\|_2).

So the sum has L2 sensitivity 1 whatever the center and the scale are, as long as they do not depend
on the data of this step other than through earlier releases. DP-SGD is :math:`c = 0, s = C`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from adamas._numerics.sums import squared_norms
from adamas.errors import UnsupportedError

Value: TypeAlias = Tensor | float
"""A number for a whole tensor, or a tensor with a value per coordinate."""


@dataclass(frozen=True)
class Geometry:
    """A center and a scale for each parameter, each one number or one value per coordinate.

    Attributes:
        center: The point that whitening subtracts; a missing parameter, or None, means 0.
        scale: The positive width that whitening divides by.

    Guarantee:
        | scale or parameter | what happens |
        |---|---|
        | a complex parameter | refused at construction |
        | 0, negative or NaN | refused at construction |
        | infinite (a number) | nothing is clipped; only allowed without noise |
        | not finite (per coordinate), or beyond the parameter's number type | refused at construction |

    Example:
        >>> import torch
        >>> from adamas import Geometry
        >>> p = torch.nn.Parameter(torch.zeros(2))
        >>> Geometry.ball([p], radius=2.0).whiten(p, torch.tensor([1.0, -4.0]))
        tensor([ 0.5000, -2.0000])
    """

    center: Mapping[Tensor, Value] | None
    scale: Mapping[Tensor, Value]
    _center_squares: dict[Tensor, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _least_scales: dict[Tensor, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for p, s in self.scale.items():
            check_real(p)
            self._least_scales[p] = _checked_scale(p, s)
        for p, c in (self.center or {}).items():
            if p not in self.scale:
                raise ValueError("Expected the center's parameters to be among the scale's.")
            if isinstance(c, Tensor) and c.dim() and c.shape != p.shape:
                raise ValueError(f"Expected a center of shape {tuple(p.shape)}, got {tuple(c.shape)}.")
            if not _is_finite(c):
                raise ValueError("Expected a geometry's center to be finite.")

    @classmethod
    def ball(cls, params: Iterable[Tensor], radius: float = 1.0) -> "Geometry":
        """Returns the ball of this radius around 0 over all parameters together: flat clipping."""
        return cls(center=None, scale=dict.fromkeys(params, float(radius)))

    def scaled(self, factor: float) -> "Geometry":
        """Returns the same center, with the scale multiplied by a number (a clip norm)."""
        if factor == 1.0:
            return self
        return Geometry(self.center, {p: s * factor for p, s in self.scale.items()})

    def center_of(self, p: Tensor) -> Value | None:
        """Returns the center of one parameter; None for 0."""
        return None if self.center is None else self.center.get(p)

    def center_square(self, p: Tensor) -> float:
        """Returns `|c/s|^2` of one parameter, computed once."""
        known = self._center_squares
        if p not in known:
            c = self.center_of(p)
            whitened = 0.0 if c is None else c / self.scale[p]
            if not isinstance(whitened, Tensor):
                whitened = torch.tensor(whitened, dtype=torch.float64)
            known[p] = float(squared_norms(whitened.expand(1, *p.shape)))
        return known[p]

    def least_scale(self, p: Tensor) -> float:
        """Returns the smallest scale of a coordinate of one parameter."""
        return self._least_scales[p]

    def whiten(self, p: Tensor, gradients: Tensor) -> Tensor:
        """Computes `(g - c) / s` for one gradient of `p`, or for many along leading axes."""
        c = self.center_of(p)
        return gradients / self.scale[p] if c is None else (gradients - c).div_(self.scale[p])

    def squared_norms(self, p: Tensor, gradients: Tensor) -> Tensor:
        """Computes `|(g - c)/s|^2` of gradients of `p`, stacked along the first axis, in float64."""
        c, s = self.center_of(p), self.scale[p]
        if c is None and not isinstance(s, Tensor):  # a number divides the norm, not every coordinate
            squares = squared_norms(gradients)
            return squares if s == 1.0 else squares / s / s
        if isinstance(s, Tensor) and s.dim() and (c is None or (isinstance(c, Tensor) and c.dim())):
            return squared_norms(gradients, c, s)
        return squared_norms(self.whiten(p, gradients))

    def unwhiten(self, p: Tensor, whitened: Tensor) -> Tensor:
        """Computes `c + s u`, the inverse of `whiten`."""
        c = self.center_of(p)
        spread = whitened * self.scale[p]
        return spread if c is None else spread + c


def check_real(p: Tensor, name: str = "A parameter") -> None:
    """Raises if a parameter is complex: norms and noise would be those of its real part alone."""
    if p.is_complex():
        raise UnsupportedError(
            f"{name} of shape {tuple(p.shape)} is complex ({p.dtype}): its imaginary part would be in no "
            "norm and get no noise. Hold real and imaginary parts as a real parameter of shape "
            f"{(*p.shape, 2)}, and apply torch.view_as_complex to it in the forward."
        )


def _is_finite(value: Value) -> bool:
    if isinstance(value, Tensor):
        return not value.numel() or all(map(math.isfinite, value.aminmax()))  # NaN propagates to both
    return math.isfinite(value)


def _checked_scale(p: Tensor, s: Value) -> float:
    """Returns the smallest value of a scale; raises if the scale cannot divide."""
    if not isinstance(s, Tensor):
        if not (torch.finfo(p.dtype).tiny <= s <= torch.finfo(p.dtype).max or s == math.inf):
            raise ValueError(f"Expected a geometry's scale={s!r} > 0, within the numbers of {p.dtype}.")
        return s
    if s.dim() and s.shape != p.shape:
        raise ValueError(f"Expected a scale of shape {tuple(p.shape)}, got {tuple(s.shape)}.")
    if not s.numel():
        return math.inf
    low, high = map(float, s.aminmax())  # NaN propagates to both
    if not (low > 0 and high < math.inf):
        raise ValueError(
            f"Expected a geometry's scale to be finite and > 0, found values from {low:g} to {high:g}."
        )
    return low
