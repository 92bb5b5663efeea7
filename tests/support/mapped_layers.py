"""Layers whose weight is a function of a parameter, and their comparison with plain autograd.

`ROW_MAPS` are the functions that `RowMap` fits, with a closed form for the norms; `OTHERS` and `COUPLED` are
functions that it must not fit.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adamas import Geometry
from adamas.engines import Bookkeeping
from tests.support.derived_weights import axes, over_root
from tests.support.every_engine import assert_sums
from tests.support.models_by_hand import B
from tests.support.one_by_one import (
    Batch,
    ball,
    geometries,
    loss,
    one_by_one,
    some_weights,
    whitened_norms,
)

Map = Callable[[Tensor], Tensor]


# --- weights as functions of a parameter --------------------------------------------------------------


def centered(w: Tensor) -> Tensor:
    return w - w.mean(axes(w), keepdim=True)


def clamped(w: Tensor) -> Tensor:
    """Standardises rows as in NFNets; a row of little variance gets a constant factor."""
    fan = w[0].numel()
    var, mean = torch.var_mean(w, dim=axes(w), keepdim=True)
    return (w - mean) * torch.rsqrt((var * fan).clamp(min=1e-4))


def over_deviation(w: Tensor) -> Tensor:
    std, mean = torch.std_mean(w, dim=axes(w), keepdim=True)
    return (w - mean) / (std + 1e-5)


def unit_rows(w: Tensor) -> Tensor:
    return F.normalize(w, dim=1) if w.dim() == 2 else F.normalize(w.flatten(1), dim=1).view_as(w)


ROW_MAPS: dict[str, Map] = {
    "standardised, clamped": clamped,
    "standardised, deviation + eps": over_deviation,
    "standardised, root": over_root,
    "rows of length 1": unit_rows,
    "times 2": lambda w: w * 2,
    "centered": centered,
}


def mgeometries_of(w: Tensor) -> Tensor:
    return w * torch.linspace(0.5, 2, w.numel(), dtype=w.dtype).view_as(w)


# None has the form of `RowMap`.
OTHERS: dict[str, Map] = {
    "exp": torch.exp,
    "w w' w": lambda w: (w.flatten(1) @ w.flatten(1).t() @ w.flatten(1)).view_as(w),
    "softmax of the row": lambda w: w.flatten(1).softmax(1).view_as(w),
    "columns of length 1": lambda w: F.normalize(w, dim=0),
    "mask": mgeometries_of,
    "columns centered": lambda w: w - w.mean(0),
    "rows reversed": lambda w: w.flip(0),
    "by the largest singular value": lambda w: w / torch.linalg.matrix_norm(w.flatten(1), 2),
    "whole matrix standardised": lambda w: (w - w.mean()) / w.std(),
    "by the largest number": lambda w: w / w.abs().max(),
    "times the row's sum": lambda w: w * w.sum(axes(w), keepdim=True),
}

# Directions mix, of one row or of all. A single vector does not show it: some `RowMap` has the same image.
COUPLED: dict[str, Map] = {
    "matrix of length 1": lambda w: w / w.norm(),
    "by the longest row": lambda w: w / w.flatten(1).norm(dim=1).max(),
    "by the mean length of a row": lambda w: w / w.flatten(1).norm(dim=1).mean(),
    "centered rows, matrix of length 1": lambda w: centered(w) / centered(w).norm(),
    "centered rows, times the mean": lambda w: centered(w) * w.mean(),
    "centered rows, times the row's mean": lambda w: centered(w) * w.mean(axes(w), keepdim=True),
    "length 1, times the length of the first row": lambda w: unit_rows(w) * w[0].norm(),
}

ALL = ROW_MAPS | OTHERS | COUPLED


# --- layers -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    weight: tuple[int, ...]
    x: tuple[int, ...]
    call: Callable[..., Tensor] = F.linear
    options: dict[str, Any] = field(default_factory=dict)


LAYERS = {
    "linear, one place": Layer((6, 9), (9,)),
    "linear, few places": Layer((10, 12), (3, 12)),
    "linear, many places": Layer((5, 6), (20, 6)),
    "conv1d": Layer((4, 3, 3), (3, 17), F.conv1d, {"stride": 2, "padding": 2, "dilation": 2}),
    "conv2d": Layer((4, 3, 3, 2), (3, 9, 8), F.conv2d, {"stride": (2, 1), "padding": 1, "dilation": (1, 2)}),
    "conv2d, pixels": Layer((32, 32, 3, 3), (32, 4, 4), F.conv2d, {"padding": 1}),
}


class Mapped(nn.Module):
    """A layer whose weight is a function of its parameter."""

    def __init__(self, mapping: Map, layer: Layer, bias: bool) -> None:
        super().__init__()
        self.mapping, self.layer = mapping, layer
        self.weight = nn.Parameter(torch.randn(layer.weight))
        self.bias = nn.Parameter(torch.randn(layer.weight[0])) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer.call(x, self.mapping(self.weight), self.bias, **self.layer.options)
        return y / self.weight[0].numel() ** 0.5


def batch_of(*shape: int) -> Batch:
    return torch.randn(B, *shape), 0.5 + torch.rand(B)


# --- geometries and comparisons -----------------------------------------------------------------------


def geometries_of(model: nn.Module) -> dict[str, Geometry]:
    """Makes a geometry of each form, by name."""
    flat, coordinates, numbers = geometries(model)
    return {
        "ball": flat,
        "another ball": ball(model, 3.0),
        "center and scale per coordinate": coordinates,
        "scale per coordinate": Geometry(None, coordinates.scale),
        "center and number": numbers,
        "number for each": Geometry(None, numbers.scale),
    }


GEOMETRIES = list(geometries_of(nn.Linear(1, 1)))


def assert_close_rows(actual: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    """Asserts that two tensors agree relative to each value; `close` compares with the largest."""
    assert actual.shape == expected.shape
    worst = float((actual / expected - 1).abs().max())
    assert worst <= tolerance, f"off by {worst:g}"


def assert_exact(model: nn.Module, batch: Batch, geometry: Geometry | None = None) -> None:
    """Compares norms in one geometry and a weighted sum with those of one example at a time."""
    geometry = ball(model, 0.8) if geometry is None else geometry
    expected, weights = one_by_one(model, batch), some_weights(B)
    built = Bookkeeping(model, loss, batch)
    assert_close_rows(built.norms(geometry), whitened_norms(expected, geometry))
    assert_sums(built, weights, expected)
