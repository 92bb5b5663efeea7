"""Weights computed from parameters: the closed form of their norms, and the general path."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from adamas import Geometry
from adamas.engines import Bookkeeping, Loop, trainable_parameters
from adamas.engines.bookkeeping import derived
from adamas.engines.bookkeeping.row_map import RowMap
from tests.support.derived_weights import axes, over_root
from tests.support.models_by_hand import B, param
from tests.support.one_by_one import (
    ball,
    close,
    geometries,
    loss,
    one_by_one,
    some_weights,
    summed,
    whitened_norms,
)
from tests.support.through import Through

SEED = 5  # of the dropout masks

pytestmark = pytest.mark.filterwarnings(
    "ignore:There is a performance drop:UserWarning",
    "ignore:None of the inputs have requires_grad:UserWarning",
)

Map = Callable[[Tensor], Tensor]
Batch = tuple[Tensor, ...]


@pytest.fixture(autouse=True)
def double() -> None:
    torch.set_default_dtype(torch.float64)


# --- weights as functions of parameters ---------------------------------------------------------------


def centered(w: Tensor) -> Tensor:
    return w - w.mean(axes(w), keepdim=True)


def clamped(w: Tensor) -> Tensor:
    """NFNets: a row of little variance is inside the clamp, where its factor is constant."""
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


def masked(w: Tensor) -> Tensor:
    return w * torch.linspace(0.5, 2, w.numel(), dtype=w.dtype).view_as(w)


OTHERS: dict[str, Map] = {
    "exp": torch.exp,
    "w w' w": lambda w: (w.flatten(1) @ w.flatten(1).t() @ w.flatten(1)).view_as(w),
    "softmax of the row": lambda w: w.flatten(1).softmax(1).view_as(w),
    "columns of length 1": lambda w: F.normalize(w, dim=0),
    "mask": masked,
    "columns centered": lambda w: w - w.mean(0),
    "rows reversed": lambda w: w.flip(0),
    "by the largest singular value": lambda w: w / torch.linalg.matrix_norm(w.flatten(1), 2),
    "whole matrix standardised": lambda w: (w - w.mean()) / w.std(),
    "by the largest number": lambda w: w / w.abs().max(),
    "times the row's sum": lambda w: w * w.sum(axes(w), keepdim=True),
}
"""None has the form of `RowMap`."""

COUPLED: dict[str, Map] = {
    "matrix of length 1": lambda w: w / w.norm(),
    "by the longest row": lambda w: w / w.flatten(1).norm(dim=1).max(),
    "by the mean length of a row": lambda w: w / w.flatten(1).norm(dim=1).mean(),
    "centered rows, matrix of length 1": lambda w: centered(w) / centered(w).norm(),
    "centered rows, times the mean": lambda w: centered(w) * w.mean(),
    "centered rows, times the row's mean": lambda w: centered(w) * w.mean(axes(w), keepdim=True),
    "length 1, times the length of the first row": lambda w: unit_rows(w) * w[0].norm(),
}
"""Directions mix, of one row or of all: one vector's image does not show it, as it is `RowMap`'s for it."""

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
    """One layer whose weight is a function of its parameter."""

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


@dataclass
class Calls:
    fits: list[RowMap | None] = field(default_factory=list)
    squares: list[Tensor | None] = field(default_factory=list)
    general: int = 0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Counts calls of `RowMap`, and Jacobian products of single examples."""
    seen = Calls()
    fit, combined, general = RowMap.fit, RowMap._combined, derived._pulled_back

    def spied_fit(*args: Any) -> RowMap | None:
        seen.fits.append(fit(*args))
        return seen.fits[-1]

    def spied_squares(self: RowMap, *args: Any) -> Tensor | None:
        seen.squares.append(combined(self, *args))
        return seen.squares[-1]

    def spied_general(*args: Any) -> Any:
        seen.general += 1
        return general(*args)

    monkeypatch.setattr(RowMap, "fit", spied_fit)
    monkeypatch.setattr(RowMap, "_combined", spied_squares)
    monkeypatch.setattr(derived, "_pulled_back", spied_general)
    return seen


def assert_close_rows(actual: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    """Asserts equality relative to each example, unlike `close`."""
    assert actual.shape == expected.shape
    worst = float((actual / expected - 1).abs().max())
    assert worst <= tolerance, f"off by {worst:g}"


def assert_exact(model: nn.Module, batch: Batch, geometry: Geometry | None = None) -> None:
    geometry = ball(model, 0.8) if geometry is None else geometry
    expected, weights = one_by_one(model, batch), some_weights(B)
    built = Bookkeeping(model, loss, batch)
    assert_close_rows(built.norms(geometry), whitened_norms(expected, geometry))
    sums = built.weighted_sum(weights)
    for p, total in summed(expected, weights).items():
        close(sums[p], total)


# --- the closed form ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", ROW_MAPS)
def test_normalised_rows_have_their_closed_form(name: str, layer: str, bias: bool, calls: Calls) -> None:
    model = Mapped(ROW_MAPS[name], LAYERS[layer], bias)
    assert_exact(model, batch_of(*LAYERS[layer].x))
    assert [fit is not None for fit in calls.fits] == [True]
    assert [squares is not None for squares in calls.squares] == [True]
    assert calls.general == 0


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", ROW_MAPS)
def test_a_row_of_little_variance_is_exact(name: str, layer: str, calls: Calls) -> None:
    model = Mapped(ROW_MAPS[name], LAYERS[layer], bias=True)
    with torch.no_grad():
        model.weight[1] *= 1e-4
    assert_exact(model, batch_of(*LAYERS[layer].x))
    assert [fit is not None for fit in calls.fits] == [True]
    assert len(calls.squares) == 1


@pytest.mark.parametrize("layer", LAYERS)
def test_a_row_inside_the_clamp_has_factors_of_its_own(layer: str) -> None:
    shape = LAYERS[layer].weight
    w = nn.Parameter(torch.randn(shape))
    with torch.no_grad():
        w[1] *= 1e-4
    row_map = RowMap.fit(clamped(w), [w])
    assert row_map is not None
    assert float(row_map.own[1]) == pytest.approx(float(row_map.alpha[1]), rel=1e-9)
    assert float(row_map.alpha[1]) == pytest.approx(100, rel=1e-9)
    assert float(row_map.own[0].abs()) < 1e-9 * float(row_map.alpha[0])
    assert float(row_map.one.abs().max()) < 1e-9


@pytest.mark.parametrize("layer", ["linear, many places", "conv2d"])
@pytest.mark.parametrize("offset", [0.5, 1e3])
def test_a_row_with_a_mean_far_above_its_deviation_is_exact(layer: str, offset: float) -> None:
    model = Mapped(over_root, LAYERS[layer], bias=True)
    with torch.no_grad():
        model.weight[1] = offset + 1e-2 * model.weight[1]
    built = Bookkeeping(model, loss, batch := batch_of(*LAYERS[layer].x))
    expected = whitened_norms(one_by_one(model, batch), ball(model))
    assert_close_rows(built.norms(ball(model)), expected, 1e-9 * max(1.0, offset))


def test_large_gradients_of_a_convolution_over_one_axis_are_exact() -> None:
    layer = Layer((8, 8, 3), (8, 2), F.conv1d, {"padding": 1})
    assert_exact(Mapped(clamped, layer, bias=True), batch_of(*layer.x))


@pytest.mark.parametrize("groups", [2, 4])
def test_groups_are_exact(groups: int) -> None:
    layer = Layer((4, 4 // groups, 3, 3), (4, 5, 5), F.conv2d, {"groups": groups})
    assert_exact(Mapped(clamped, layer, bias=True), batch_of(*layer.x))


@pytest.mark.parametrize("name", ["standardised, clamped", "rows of length 1"])
def test_a_transposed_use_is_exact(name: str) -> None:
    model = Through(lambda m, x: (x @ ROW_MAPS[name](m.w)).tanh(), w=nn.Parameter(torch.randn(6, 9)))
    assert_exact(model, batch_of(6))


@pytest.mark.parametrize("layer", ["linear, few places", "linear, many places", "conv2d", "conv2d, pixels"])
def test_float32_keeps_its_digits(layer: str, calls: Calls) -> None:
    model = Mapped(clamped, LAYERS[layer], bias=True).float()
    x, factor = (t.float() for t in batch_of(*LAYERS[layer].x))
    wide = copy.deepcopy(model).double()
    expected = whitened_norms(one_by_one(wide, (x.double(), factor.double())), ball(wide))
    norms = Bookkeeping(model, loss, (x, factor)).norms(ball(model))
    assert_close_rows(norms, expected, 2e-6)
    assert [squares is not None for squares in calls.squares] == [True]
    assert calls.general == 0


# --- other Jacobians ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 9), (5, 3, 3), (4, 3, 2, 2)], ids=str)
@pytest.mark.parametrize("name", OTHERS | COUPLED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_another_jacobian_has_no_row_map(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    w = nn.Parameter(torch.randn(shape, dtype=dtype))
    assert RowMap.fit(ALL[name](w), [w]) is None


@pytest.mark.parametrize(
    "layer", ["linear, one place", "linear, few places", "linear, many places", "conv2d"]
)
@pytest.mark.parametrize("name", OTHERS | COUPLED)
def test_another_jacobian_is_exact(name: str, layer: str, calls: Calls) -> None:
    assert_exact(Mapped(ALL[name], LAYERS[layer], bias=True), batch_of(*LAYERS[layer].x))
    assert calls.squares == []
    assert calls.general > 0


# One number has no deviation, and one centered number no length: 0 / 0.
UNDEFINED = {"standardised, clamped", "standardised, deviation + eps", "centered rows, matrix of length 1"}


@pytest.mark.parametrize(
    ("name", "width"),
    [(name, width) for name in ALL for width in (1, 2, 3) if width > 1 or name not in UNDEFINED],
)
def test_narrow_rows_are_exact(name: str, width: int) -> None:
    model = Through(
        lambda m, x: m.o(F.linear(x, m.b + ALL[name](m.w)).tanh()),
        w=nn.Parameter(torch.randn(4, width)),
        o=nn.Linear(4, 3),
        b=torch.ones(4, width),
    )
    plain = Mapped(ALL[name], Layer((4, width), (width,)), bias=True)
    for one in (model, plain):
        assert_exact(one, batch_of(width))


@pytest.mark.parametrize("height", [1, 2])
@pytest.mark.parametrize("name", ALL)
def test_few_rows_are_exact(name: str, height: int) -> None:
    layer = Layer((height, 7), (7,))
    assert_exact(Mapped(ALL[name], layer, bias=True), batch_of(7))


def test_a_weight_of_two_parameters_has_no_row_map(calls: Calls) -> None:
    model = Through(lambda m, x: m.l(x).tanh(), l=weight_norm(nn.Linear(9, 6)))
    assert_exact(model, batch_of(9))
    assert calls.fits == [None]
    assert calls.general > 0


def test_a_factor_per_row_of_another_parameter_has_no_row_map(calls: Calls) -> None:
    model = Through(
        lambda m, x: F.conv2d(x, m.gain * clamped(m.w), padding=1),
        w=nn.Parameter(torch.randn(4, 3, 3, 3)),
        gain=nn.Parameter(torch.rand(4, 1, 1, 1)),
    )
    assert_exact(model, batch_of(3, 5, 5))
    assert calls.fits == [None]


@pytest.mark.parametrize("change", [lambda t: t.clone().fill_(0.0), lambda t: t * 0, lambda t: t / 0])
def test_weights_of_no_length_have_no_row_map(change: Map) -> None:
    w = nn.Parameter(torch.randn(4, 6))
    t = w * change(w.detach())
    assert RowMap.fit(t, [w]) is None


# --- geometries ---------------------------------------------------------------------------------------


def asked(model: nn.Module) -> dict[str, Geometry]:
    flat, coordinates, numbers = geometries(model)
    return {
        "ball": flat,
        "another ball": ball(model, 3.0),
        "center and scale per coordinate": coordinates,
        "scale per coordinate": Geometry(None, coordinates.scale),
        "center and number": numbers,
        "number for each": Geometry(None, numbers.scale),
    }


GEOMETRIES = list(asked(nn.Linear(1, 1)))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_every_geometry_is_exact(geometry: str, layer: str, calls: Calls) -> None:
    model = Mapped(clamped, LAYERS[layer], bias=True)
    assert_exact(model, batch_of(*LAYERS[layer].x), asked(model)[geometry])
    closed = geometry in ("ball", "another ball", "number for each")
    assert len(calls.squares) == closed
    assert (calls.general == 0) == closed


@pytest.mark.parametrize("layer", ["linear, one place", "linear, many places", "conv2d"])
@pytest.mark.parametrize("first", GEOMETRIES)
@pytest.mark.parametrize("mapping", [clamped, lambda w: w], ids=["derived", "plain"])
def test_one_engine_answers_in_any_geometry(mapping: Map, first: str, layer: str) -> None:
    model = Mapped(mapping, LAYERS[layer], bias=True)
    batch = batch_of(*LAYERS[layer].x)
    expected, known = one_by_one(model, batch), asked(model)
    built = Bookkeeping(model, loss, batch)
    for name in (first, *GEOMETRIES, first):
        assert_close_rows(built.norms(known[name]), whitened_norms(expected, known[name]))


# --- more than one use --------------------------------------------------------------------------------


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
    for geometry in asked(model).values():
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


# --- autocast and checkpointing -----------------------------------------------------------------------


@pytest.mark.parametrize("layer", ["linear, many places", "conv2d", "conv2d, pixels"])
def test_autocast_is_near_one_example_at_a_time(layer: str) -> None:
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
        sums = built.weighted_sum(weights)
        for p, total in summed(expected, weights).items():
            close(sums[p], total)


# --- what surrounds a normalised weight ---------------------------------------------------------------


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
def test_the_output_may_be_changed_in_place(name: str, calls: Calls) -> None:
    build, shape = IN_PLACE[name]
    assert_exact(build(), batch_of(*shape))
    assert [squares is not None for squares in calls.squares] == [True]


def test_a_large_bias_costs_no_digits() -> None:
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


@pytest.mark.parametrize("function", [torch.exp, torch.tanh, F.softplus], ids=lambda f: f.__name__)
def test_16_bits_do_not_pass_for_another_form(function: Callable[[Tensor], Tensor]) -> None:
    """With the precision of bfloat16 as tolerance, norms would be too low by up to a half."""
    torch.manual_seed(0)
    model = Through(lambda m, x: F.linear(x, function(m.w)), w=nn.Parameter(torch.randn(5, 8))).bfloat16()
    batch = (torch.eye(8)[:B].bfloat16(), torch.ones(B).bfloat16())

    def summed_up(model: nn.Module, batch: Any) -> Tensor:
        return model(batch[0]).float().mul(torch.arange(1.0, 6.0)).sum(1)

    expected = whitened_norms(one_by_one(model, batch, summed_up), ball(model))
    assert_close_rows(Bookkeeping(model, summed_up, batch).norms(ball(model)), expected, 0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_one_example_of_many_moves_the_sum_by_at_most_one(dtype):
    # All gradients point the same way, so that the sum is as long as the batch.
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
