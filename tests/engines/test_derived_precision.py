"""Weights computed from a parameter: norms and sums in float32, in 16 bits and under autocast."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adamas import Geometry
from adamas.engines import Bookkeeping, Loop, trainable_parameters
from tests.support.mapped_layers import LAYERS, Mapped, assert_close_rows, batch_of, clamped, unit_rows
from tests.support.models_by_hand import B, param
from tests.support.one_by_one import Batch, ball, loss, one_by_one, some_weights, whitened_norms
from tests.support.row_map_calls import Calls
from tests.support.through import Through

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings(
        "ignore:There is a performance drop:UserWarning",
        "ignore:None of the inputs have requires_grad:UserWarning",
    ),
]


@pytest.mark.parametrize("layer", ["linear, few places", "linear, many places", "conv2d", "conv2d, pixels"])
def test_float32_norms_are_exact_to_float32(layer: str, calls: Calls) -> None:
    model = Mapped(clamped, LAYERS[layer], bias=True).float()
    x, factor = (t.float() for t in batch_of(*LAYERS[layer].x))
    wide = copy.deepcopy(model).double()
    expected = whitened_norms(one_by_one(wide, (x.double(), factor.double())), ball(wide))
    norms = Bookkeeping(model, loss, (x, factor)).norms(ball(model))
    assert_close_rows(norms, expected, 2e-6)
    assert [squares is not None for squares in calls.squares] == [True]
    assert calls.general == 0


def test_a_large_bias_does_not_cost_precision() -> None:
    torch.manual_seed(0)
    model = Through(
        lambda m, x: F.linear(x, unit_rows(m.w), m.b),
        w=nn.Parameter(torch.randn(8, 30)),
        b=nn.Parameter(torch.full((8,), 1e5), requires_grad=False),
    ).float()
    x, factor = 1e-2 * torch.randn(B, 30), torch.ones(B)

    def summed_up(model: nn.Module, batch: Any) -> Tensor:
        return model(batch[0]).mul(torch.arange(1.0, 9.0).to(batch[0])).sum(1)

    low = Bookkeeping(model, summed_up, (x.float(), factor)).norms(ball(model))
    model = model.double()
    high = whitened_norms(one_by_one(model, (x.double(), factor), summed_up), ball(model))
    assert_close_rows(low, high, 1e-6)


@pytest.mark.parametrize("layer", ["linear, many places", "conv2d", "conv2d, pixels"])
def test_norms_and_sums_under_autocast_are_exact_to_bfloat16(layer: str) -> None:
    def cast(model: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(batch[0])
        return batch[1] * out.float().flatten(1).square().sum(1)

    torch.set_default_dtype(torch.float32)
    model = Mapped(clamped, LAYERS[layer], bias=True)
    batch = batch_of(*LAYERS[layer].x)
    built, loop = Bookkeeping(model, cast, batch), Loop(model, cast, batch)
    assert_close_rows(built.norms(ball(model)), loop.norms(ball(model)), 5e-2)
    weights = some_weights(B)
    sums, expected = built.weighted_sum(weights), loop.weighted_sum(weights)
    for p, total in expected.items():
        assert float((sums[p] - total).norm()) <= 5e-2 * float(total.norm())


@pytest.mark.parametrize("function", [torch.exp, torch.tanh, F.softplus], ids=lambda f: f.__name__)
def test_no_row_map_is_fitted_to_rounding_errors_of_16_bits(function: Callable[[Tensor], Tensor]) -> None:
    """With the precision of bfloat16 as tolerance one would fit, and norms would be too low by up to half."""
    torch.manual_seed(0)
    model = Through(lambda m, x: F.linear(x, function(m.w)), w=nn.Parameter(torch.randn(5, 8))).bfloat16()
    batch = (torch.eye(8)[:B].bfloat16(), torch.ones(B).bfloat16())

    def summed_up(model: nn.Module, batch: Any) -> Tensor:
        return model(batch[0]).float().mul(torch.arange(1.0, 6.0)).sum(1)

    expected = whitened_norms(one_by_one(model, batch, summed_up), ball(model))
    assert_close_rows(Bookkeeping(model, summed_up, batch).norms(ball(model)), expected, 0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_one_example_moves_a_large_sum_of_16_bits_by_at_most_1(dtype: torch.dtype) -> None:
    # All gradients point the same way, so that the norm of the sum grows with the batch.
    torch.manual_seed(0)
    model = Through(lambda m, x: F.linear(x, m.w * m.g), w=param(6, 7), g=param(6, 1)).to(dtype)
    n = 512
    x = (1 + 0.01 * torch.randn(n, 7)).to(dtype)
    ball = Geometry.ball(trainable_parameters(model).values(), 0.01)

    def clipped(rows: Tensor) -> Tensor:
        engine = Bookkeeping(model, lambda m, batch: m(batch[0]).float().sum(1), (rows,))
        weights = 1 / engine.norms(ball).clamp(min=1)
        return torch.cat([s.double().flatten() for s in engine.weighted_sum(weights).values()]) / 0.01

    assert float((clipped(x) - clipped(x[:-1])).norm()) <= 1 + 1e-3


class InBfloat16(torch.autograd.Function):
    """A product whose backward rounds, between tensors in float32."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return (a @ b).float()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = (t.bfloat16() for t in ctx.saved_tensors)
        g = g.bfloat16()
        return (g @ b.mT).float(), (a.mT @ g).float()


def rotated(m: nn.Module) -> Tensor:
    """A series for a rotation, as of OFT: autocast rounds its products, and the sum is in float32."""
    skew = m.w - m.w.mT
    return torch.eye(7) + 2 * skew + 2 * skew @ skew


@pytest.mark.parametrize(
    "weight", [rotated, lambda m: InBfloat16.apply(m.w, m.w)], ids=["autocast", "custom function"]
)
def test_steps_in_16_bits_do_not_round_a_large_sum(weight: Callable[[nn.Module], Tensor]) -> None:
    """Parameters and derived weight are in float32. All gradients point the same way."""
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    model = Through(lambda m, x: F.linear(x, weight(m)), w=nn.Parameter(0.3 * torch.randn(7, 7)))
    n = 512
    x, direction = 1 + 0.1 * torch.randn(n, 7), torch.arange(1.0, 8.0)
    ball = Geometry.ball(trainable_parameters(model).values(), 0.01)

    def summed_up(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(batch[0])
        return out.float().mul(direction).sum(1)

    def clipped(rows: Tensor) -> Tensor:
        engine = Bookkeeping(model, summed_up, (rows,))
        weights = 1 / engine.norms(ball).clamp(min=1)
        return torch.cat([s.double().flatten() for s in engine.weighted_sum(weights).values()]) / 0.01

    assert max(float((clipped(x) - clipped(x.roll(k, 0)[:-1])).norm()) for k in range(4)) <= 1 + 1e-3
