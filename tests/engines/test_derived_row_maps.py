"""Weights computed from a parameter: norms have a closed form where `RowMap` fits, else a general path."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from adamas.engines import Bookkeeping
from adamas.engines.bookkeeping.row_map import RowMap
from tests.support.derived_weights import over_root
from tests.support.mapped_layers import (
    ALL,
    COUPLED,
    GEOMETRIES,
    LAYERS,
    OTHERS,
    ROW_MAPS,
    Layer,
    Map,
    Mapped,
    assert_close_rows,
    assert_exact,
    batch_of,
    clamped,
    geometries_of,
)
from tests.support.one_by_one import ball, loss, one_by_one, whitened_norms
from tests.support.row_map_calls import Calls
from tests.support.through import Through

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings(
        "ignore:There is a performance drop:UserWarning",
        "ignore:None of the inputs have requires_grad:UserWarning",
    ),
]


# --- functions that a row map fits --------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", ROW_MAPS)
def test_a_row_map_gives_norms_in_closed_form(name: str, layer: str, bias: bool, calls: Calls) -> None:
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
def test_a_clamped_row_has_its_own_factors(layer: str) -> None:
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


# --- functions that no row map fits -------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 9), (5, 3, 3), (4, 3, 2, 2)], ids=str)
@pytest.mark.parametrize("name", OTHERS | COUPLED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_no_row_map_fits_another_jacobian(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    w = nn.Parameter(torch.randn(shape, dtype=dtype))
    assert RowMap.fit(ALL[name](w), [w]) is None


@pytest.mark.parametrize(
    "layer", ["linear, one place", "linear, few places", "linear, many places", "conv2d"]
)
@pytest.mark.parametrize("name", OTHERS | COUPLED)
def test_another_jacobian_is_exact_by_the_general_path(name: str, layer: str, calls: Calls) -> None:
    assert_exact(Mapped(ALL[name], LAYERS[layer], bias=True), batch_of(*LAYERS[layer].x))
    assert calls.squares == []
    assert calls.general > 0


def test_no_row_map_fits_a_weight_of_two_parameters(calls: Calls) -> None:
    model = Through(lambda m, x: m.l(x).tanh(), l=weight_norm(nn.Linear(9, 6)))
    assert_exact(model, batch_of(9))
    assert calls.fits == [None]
    assert calls.general > 0


def test_no_row_map_fits_rows_that_another_parameter_scales(calls: Calls) -> None:
    model = Through(
        lambda m, x: F.conv2d(x, m.gain * clamped(m.w), padding=1),
        w=nn.Parameter(torch.randn(4, 3, 3, 3)),
        gain=nn.Parameter(torch.rand(4, 1, 1, 1)),
    )
    assert_exact(model, batch_of(3, 5, 5))
    assert calls.fits == [None]


@pytest.mark.parametrize("change", [lambda t: t.clone().fill_(0.0), lambda t: t * 0, lambda t: t / 0])
def test_no_row_map_fits_weights_that_are_zero_or_not_finite(change: Map) -> None:
    w = nn.Parameter(torch.randn(4, 6))
    t = w * change(w.detach())
    assert RowMap.fit(t, [w]) is None


# --- shapes and geometries ----------------------------------------------------------------------------


# 0 / 0 for rows of one number, which have no deviation and, once centered, no length.
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


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_every_geometry_is_exact(geometry: str, layer: str, calls: Calls) -> None:
    model = Mapped(clamped, LAYERS[layer], bias=True)
    assert_exact(model, batch_of(*LAYERS[layer].x), geometries_of(model)[geometry])
    closed = geometry in ("ball", "another ball", "number for each")
    assert len(calls.squares) == closed
    assert (calls.general == 0) == closed


@pytest.mark.parametrize("layer", ["linear, one place", "linear, many places", "conv2d"])
@pytest.mark.parametrize("first", GEOMETRIES)
@pytest.mark.parametrize("mapping", [clamped, lambda w: w], ids=["derived", "plain"])
def test_one_engine_answers_in_any_geometry(mapping: Map, first: str, layer: str) -> None:
    model = Mapped(mapping, LAYERS[layer], bias=True)
    batch = batch_of(*LAYERS[layer].x)
    expected, known = one_by_one(model, batch), geometries_of(model)
    built = Bookkeeping(model, loss, batch)
    for name in (first, *GEOMETRIES, first):
        assert_close_rows(built.norms(known[name]), whitened_norms(expected, known[name]))
