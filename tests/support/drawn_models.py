"""Models drawn by hypothesis: one function for each kind of layer or use of a parameter.

`cases(kind)` draws a model of a kind with a batch, a geometry and weights, all in float64.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from adamas import Geometry
from adamas.engines import trainable_parameters
from tests.support.through import Through


def small(draw: Any, low: int = 1, high: int = 4) -> int:
    return draw(st.integers(low, high))


def linear(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    d, k = small(draw), small(draw)
    model = nn.Sequential(nn.Linear(d, k, bias=draw(st.booleans())), nn.Tanh(), nn.Linear(k, 3))
    return model, torch.randn(n, d)


def linear_with_time(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    d, k = small(draw), small(draw)
    times = draw(st.sampled_from([(1,), (3,), (2, 3)]))
    return nn.Sequential(nn.Linear(d, k), nn.Tanh(), nn.Linear(k, 2)), torch.randn(n, *times, d)


def linear_with_time_as_long_as_the_batch(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    # T = n: the length does not tell the time axis from the batch axis.
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)), torch.randn(n, max(n, 1), 3)


def conv1d(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    groups = draw(st.sampled_from([1, 2]))
    kernel, dilation = small(draw, 1, 3), small(draw, 1, 2)
    layer = nn.Conv1d(
        2 * groups,
        2 * groups,
        kernel,
        stride=small(draw, 1, 3),
        padding=small(draw, 0, 2),
        dilation=dilation,
        groups=groups,
        bias=draw(st.booleans()),
    )
    return nn.Sequential(layer, nn.Tanh()), torch.randn(n, 2 * groups, small(draw, 5, 8))


def conv2d(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    groups = draw(st.sampled_from([1, 2]))
    layer = nn.Conv2d(
        2 * groups,
        2 * groups,
        (small(draw, 1, 3), small(draw, 1, 3)),
        stride=(small(draw, 1, 2), small(draw, 1, 3)),
        padding=draw(st.sampled_from([0, 1, (2, 0)])),
        dilation=(small(draw, 1, 2), small(draw, 1, 2)),
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode=draw(st.sampled_from(["zeros", "zeros", "circular"])),
    )
    return nn.Sequential(layer, nn.Tanh()), torch.randn(n, 2 * groups, small(draw, 5, 7), small(draw, 5, 7))


def conv_depthwise_same(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    layer = nn.Conv2d(3, 6, 3, padding="same", groups=3)
    return nn.Sequential(layer, nn.Tanh(), nn.Conv2d(6, 2, 1)), torch.randn(n, 3, 4, 5)


def embedding(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    size, width = small(draw, 2, 5), small(draw)
    padding_idx = draw(st.sampled_from([None, 0, size - 1]))
    model = nn.Sequential(nn.Embedding(size, width, padding_idx=padding_idx), nn.Tanh(), nn.Linear(width, 2))
    # More tokens than words: every example repeats words, and some hit the padding index.
    shape = draw(st.sampled_from([(6,), (2, 4)]))
    return model, torch.randint(size, (n, *shape))


def layer_norm(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    shape = draw(st.sampled_from([(3,), (4, 3), (2, 4, 3)]))
    axes = draw(st.integers(1, len(shape)))
    layer = nn.LayerNorm(shape[-axes:], bias=draw(st.booleans()))
    return nn.Sequential(layer, nn.Tanh()), torch.randn(n, *shape)


def group_norm(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    groups = draw(st.sampled_from([1, 2, 4]))
    extent = draw(st.sampled_from([(3,), (2, 3)]))
    return nn.Sequential(nn.GroupNorm(groups, 4), nn.Tanh()), torch.randn(n, 4, *extent)


def instance_norm(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    layer: nn.Module
    if draw(st.booleans()):
        layer, extent = nn.InstanceNorm1d(3, affine=True), (5,)
    else:
        layer, extent = nn.InstanceNorm2d(3, affine=True), (3, 4)
    return nn.Sequential(layer, nn.Tanh()), torch.randn(n, 3, *extent)


def bias_only(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    for name, p in model.named_parameters():
        p.requires_grad_("bias" in name)
    return model, torch.randn(n, 3)


def bare_parameters(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    rows = draw(st.sampled_from([(), (1,), (2,)]))
    return (
        Through(
            lambda m, x: (x * m.gain + m.shift).tanh(),
            gain=nn.Parameter(torch.randn(*rows, 3)),
            shift=nn.Parameter(torch.randn(3)),
        ),
        torch.randn(n, 2, 3),
    )


def tied_weights(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    width = small(draw)
    model = nn.Sequential(nn.Embedding(5, width), nn.Tanh(), nn.Linear(width, 5, bias=draw(st.booleans())))
    model[2].weight = model[0].weight
    return model, torch.randint(5, (n, small(draw, 1, 6)))


def called_twice(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    return (
        Through(lambda m, x: m.layer(m.layer(x).tanh()).tanh(), layer=nn.Linear(3, 3)),
        torch.randn(n, *draw(st.sampled_from([(3,), (2, 3)]))),
    )


def frozen_parameter(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 2))
    model[draw(st.sampled_from([0, 2, 3]))].weight.requires_grad_(False)
    return model, torch.randn(n, 3)


def unused_parameter(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    return (
        Through(lambda m, x: m.used(x).tanh(), unused=nn.Linear(2, 2), used=nn.Linear(3, 2)),
        torch.randn(n, 3),
    )


def scalar_parameter(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    return (
        Through(
            lambda m, x: m.layer(x * m.temperature).tanh(),
            layer=nn.Linear(3, 2),
            temperature=nn.Parameter(torch.tensor(1.5)),
        ),
        torch.randn(n, 3),
    )


def empty_parameter(draw: Any, n: int) -> tuple[nn.Module, Tensor]:
    return (
        Through(
            lambda m, x: m.layer(x).tanh() + m.nothing.sum(),
            layer=nn.Linear(3, 2),
            nothing=nn.Parameter(torch.zeros(0, 3)),
        ),
        torch.randn(n, 3),
    )


KINDS = [
    linear,
    linear_with_time,
    linear_with_time_as_long_as_the_batch,
    conv1d,
    conv2d,
    conv_depthwise_same,
    embedding,
    layer_norm,
    group_norm,
    instance_norm,
    bias_only,
    bare_parameters,
    tied_weights,
    called_twice,
    frozen_parameter,
    unused_parameter,
    scalar_parameter,
    empty_parameter,
]


@dataclass
class Case:
    model: nn.Module
    batch: tuple[Tensor, Tensor]
    geometry: Geometry
    weights: Tensor

    def __repr__(self) -> str:
        return f"Case({self.model}, x={tuple(self.batch[0].shape)}, geometry={self.geometry})"


@st.composite
def cases(draw: Any, kind: Callable[..., tuple[nn.Module, Tensor]]) -> Case:
    n = draw(st.sampled_from([0, 1, 2, 3, 5]))
    torch.manual_seed(draw(st.integers(0, 10**6)))
    torch.set_default_dtype(torch.float64)
    try:
        model, x = kind(draw, n)
        for p in model.parameters():  # else normalization layers would have weights of 1 and biases of 0
            p.data += 0.3 * torch.randn(p.shape)
        factor = 0.5 + torch.rand(n)
        geometry = draw(geometries(list(trainable_parameters(model).values())))
        weights = torch.rand(n) * (torch.rand(n) < 0.8)
    finally:
        torch.set_default_dtype(torch.float32)
    return Case(model, (x, factor), geometry, weights)


@st.composite
def geometries(draw: Any, params: list[Tensor]) -> Geometry:
    """Draws a ball, or scales and centers that are numbers for some parameters and tensors for others."""
    if draw(st.booleans()):
        return Geometry.ball(params, draw(st.sampled_from([0.1, 1.0, 30.0, float("inf")])))
    scale: dict[Tensor, Tensor | float] = {}
    center: dict[Tensor, Tensor | float] = {}
    for p in params:
        scale[p] = draw(
            st.sampled_from(
                [0.7, torch.tensor(1.3), (0.1 + 3 * torch.rand(p.shape)), torch.rand(p.shape) + 0.01]
            )
        )
        c = draw(st.sampled_from([None, 0.4, torch.tensor(-0.2), torch.randn(p.shape), torch.randn(p.shape)]))
        if c is not None:
            center[p] = c
    return Geometry(center if draw(st.booleans()) else None, scale)
