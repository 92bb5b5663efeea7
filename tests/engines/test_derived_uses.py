"""Weights computed from a parameter are exact however a model uses them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from adamas.engines import Bookkeeping
from tests.support.derived_weights import over_root
from tests.support.every_engine import assert_sums
from tests.support.mapped_layers import (
    ROW_MAPS,
    Layer,
    Mapped,
    assert_close_rows,
    assert_exact,
    batch_of,
    clamped,
    geometries_of,
    unit_rows,
)
from tests.support.models_by_hand import B
from tests.support.one_by_one import geometries, loss, some_weights, whitened_norms
from tests.support.row_map_calls import Calls
from tests.support.through import Through

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings(
        "ignore:There is a performance drop:UserWarning",
        "ignore:None of the inputs have requires_grad:UserWarning",
    ),
]

SEED = 5  # for the dropout masks


# --- one use ------------------------------------------------------------------------------------------


def test_large_gradients_of_a_convolution_over_one_axis_are_exact() -> None:
    layer = Layer((8, 8, 3), (8, 2), F.conv1d, {"padding": 1})
    assert_exact(Mapped(clamped, layer, bias=True), batch_of(*layer.x))


@pytest.mark.parametrize("groups", [2, 4])
def test_groups_are_exact(groups: int) -> None:
    layer = Layer((4, 4 // groups, 3, 3), (4, 5, 5), F.conv2d, {"groups": groups})
    assert_exact(Mapped(clamped, layer, bias=True), batch_of(*layer.x))


@pytest.mark.parametrize("name", ["standardised, clamped", "rows of length 1"])
def test_a_transposed_weight_is_exact(name: str) -> None:
    model = Through(lambda m, x: (x @ ROW_MAPS[name](m.w)).tanh(), w=nn.Parameter(torch.randn(6, 9)))
    assert_exact(model, batch_of(6))


IN_PLACE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear, relu": (
        lambda: Through(
            lambda m, x: F.relu(F.linear(x, unit_rows(m.w), m.b), inplace=True),
            w=nn.Parameter(torch.randn(4, 6)),
            b=nn.Parameter(torch.randn(4)),
        ),
        (6,),
    ),
    "conv with a Gram matrix, relu": (
        lambda: Through(
            lambda m, x: F.conv2d(x, over_root(m.w), padding=1).relu_().mean((2, 3)),
            w=nn.Parameter(torch.randn(48, 48, 3, 3)),
        ),
        (48, 3, 3),
    ),
    "conv with a Gram matrix and a bias, +=": (
        lambda: Through(
            lambda m, x: F.conv2d(x, over_root(m.w), m.b, padding=1).add_(1.0).tanh().mean((2, 3)),
            w=nn.Parameter(torch.randn(48, 48, 3, 3)),
            b=nn.Parameter(torch.randn(48)),
        ),
        (48, 3, 3),
    ),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_an_output_that_is_changed_in_place_is_exact(name: str, calls: Calls) -> None:
    build, shape = IN_PLACE[name]
    assert_exact(build(), batch_of(*shape))
    assert [squares is not None for squares in calls.squares] == [True]


# --- several uses -------------------------------------------------------------------------------------


def shared(m: Through, x: Tensor) -> Tensor:
    t = clamped(m.w)
    return F.linear(F.linear(x, t, m.b).tanh(), t)


def computed_twice(m: Through, x: Tensor) -> Tensor:
    return F.linear(F.linear(x, clamped(m.w), m.b).tanh(), clamped(m.w))


def two_maps(m: Through, x: Tensor) -> Tensor:
    return F.linear(F.linear(x, clamped(m.w), m.b).tanh(), unit_rows(m.w))


def also_plain(m: Through, x: Tensor) -> Tensor:
    return F.linear(F.linear(x, clamped(m.w), m.b).tanh(), m.w)


def one_unused(m: Through, x: Tensor) -> Tensor:
    return F.linear(x, clamped(m.w), m.b) + 0 * F.linear(x, clamped(m.w)).detach()


@pytest.mark.parametrize("places", [1, 2, 30])
@pytest.mark.parametrize("function", [shared, computed_twice, two_maps, also_plain, one_unused])
def test_several_uses_of_a_weight_are_exact(function: Callable[..., Tensor], places: int) -> None:
    model = Through(function, w=nn.Parameter(torch.randn(8, 8)), b=nn.Parameter(torch.randn(8)))
    batch = batch_of(places, 8) if places > 1 else batch_of(8)
    for geometry in geometries_of(model).values():
        assert_exact(model, batch, geometry)


@pytest.mark.parametrize("size", [4, 9])
@pytest.mark.parametrize("again", [True, False])
def test_two_convolutions_with_one_weight_are_exact(again: bool, size: int) -> None:
    def function(m: Through, x: Tensor) -> Tensor:
        t = clamped(m.w)
        y = F.conv2d(x, t, m.b, padding=1).tanh()
        return F.conv2d(y, clamped(m.w) if again else t, None, padding=1)

    channels = 32 if size == 4 else 3
    w = torch.randn(channels, channels, 3, 3)
    model = Through(function, w=nn.Parameter(w), b=nn.Parameter(torch.randn(channels)))
    assert_exact(model, batch_of(channels, size, size))


# --- checkpoints --------------------------------------------------------------------------------------


def mapped_inside(m: Through, x: Tensor) -> Tensor:
    def block(x: Tensor) -> Tensor:
        return F.conv2d(m.drop(x), clamped(m.w), m.b, padding=1).tanh()

    return checkpoint(block, m.first(x), use_reentrant=False)


def mapped_before(m: Through, x: Tensor) -> Tensor:
    def block(x: Tensor, t: Tensor) -> Tensor:
        return F.conv2d(m.drop(x), t, m.b, padding=1).tanh()

    return checkpoint(block, m.first(x), clamped(m.w), use_reentrant=False)


def mapped_with_dropout(m: Through, x: Tensor) -> Tensor:
    def block(x: Tensor) -> Tensor:
        return F.conv2d(m.drop(x), m.drop(clamped(m.w)), m.b, padding=1).tanh()

    return checkpoint(block, m.first(x), use_reentrant=False)


@pytest.mark.parametrize("function", [mapped_inside, mapped_before, mapped_with_dropout])
def test_checkpoints_with_dropout_are_exact(function: Callable[..., Tensor]) -> None:
    model = Through(
        function,
        first=nn.Conv2d(3, 4, 3),
        drop=nn.Dropout(0.4),
        w=nn.Parameter(torch.randn(4, 4, 3, 3)),
        b=nn.Parameter(torch.randn(4)),
    )
    batch = batch_of(3, 7, 7)
    params = list(model.parameters())
    torch.manual_seed(SEED)
    losses = loss(model, batch)
    expected = [
        dict(zip(params, torch.autograd.grad(value, params, retain_graph=True), strict=True))
        for value in losses
    ]
    weights = some_weights(B)
    for geometry in geometries(model):
        torch.manual_seed(SEED)
        built = Bookkeeping(model, loss, batch)
        assert_close_rows(built.norms(geometry), whitened_norms(expected, geometry))
        assert_sums(built, weights, expected)
