"""Clipping: weights, clipped sums, and the bound of 1 on the influence of any example."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adamas import Geometry, clipped_sum
from adamas.clip import clip_weights
from adamas.engines import ENGINES, Stacked
from tests.support.releases import parameter

NAN, INF = float("nan"), float("inf")


def total_norm(tensors: Iterator[Tensor]) -> float:
    return sum(float(t.double().square().sum()) for t in tensors) ** 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clip_weights_bound_the_norm_and_drop_non_finite_examples(dtype):
    table = [
        (0.0, 1.0),
        (1e-30, 1.0),
        (1.0, 1.0),
        (2.0, 0.5),
        (1e30, 1e-30),
        (INF, 0.0),
        (NAN, 0.0),
    ]
    norms, expected = torch.tensor(table, dtype=dtype).T
    torch.testing.assert_close(clip_weights(norms), expected, rtol=1e-6, atol=0)


def test_a_norm_just_above_one_is_clipped():
    norm = torch.tensor([1 + 1e-12], dtype=torch.float64)
    assert float(clip_weights(norm) * norm) <= 1 + 1e-15
    assert float(clip_weights(norm)) < 1


def test_clip_weights_of_no_example_are_empty():
    assert clip_weights(torch.zeros(0)).shape == (0,)


@pytest.mark.parametrize("radius", [0.5, 1.0, 2.5, 1e6])
def test_clipped_sum_of_scalars_is_known_in_closed_form(radius):
    # The gradient of example i is i, clipped to min(i, C). Whitened, the sum is sum_i min(i, C) / C.
    p = parameter()
    gradients = torch.arange(6, dtype=torch.float64)
    total = clipped_sum({p: gradients}, Geometry.ball([p], radius))[p]
    assert float(total) == pytest.approx(sum(min(i, radius) for i in range(6)) / radius, rel=1e-14)


def test_clipped_sum_of_a_mapping_and_of_an_engine_agree():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    # The gradient of sum(W x + b) is x for each row of W, and ones for b.
    gradients = {model.weight: x[:, None, :].expand(5, 2, 3), model.bias: torch.ones(5, 2).double()}
    geometry = Geometry(
        {model.weight: torch.randn(2, 3).double(), model.bias: 0.5},
        {model.weight: torch.rand(2, 3).double() + 0.5, model.bias: 0.7},
    )
    from_mapping = clipped_sum(gradients, geometry)
    for engine in ENGINES.values():
        from_engine = clipped_sum(engine(model, lambda model, x: model(x).sum(1), x), geometry)
        for p in model.parameters():
            torch.testing.assert_close(from_engine[p], from_mapping[p], rtol=1e-12, atol=1e-12)


def test_clipped_sum_is_the_sum_of_whitened_and_clipped_gradients():
    torch.manual_seed(0)
    p, q = parameter(2, 3), parameter()
    gradients = {p: torch.randn(4, 2, 3).double(), q: torch.randn(4).double()}
    center, scale = torch.randn(2, 3).double(), torch.rand(2, 3).double() + 0.2
    total = clipped_sum(gradients, Geometry({p: center}, {p: scale, q: 0.4}))
    expected_p, expected_q = torch.zeros_like(p), torch.zeros_like(q)
    for g, h in zip(gradients[p], gradients[q], strict=True):
        u, w = (g - center) / scale, h / 0.4
        norm = max(1.0, float((u**2).sum() + w**2) ** 0.5)
        expected_p, expected_q = expected_p + u / norm, expected_q + w / norm
    torch.testing.assert_close(total[p], expected_p.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(total[q], expected_q.detach(), rtol=1e-12, atol=1e-12)


def test_clipped_sum_of_no_example_is_zero():
    p, q = parameter(2, 3), parameter()
    geometry = Geometry({p: 5.0}, {p: 2.0, q: 1.0})
    total = clipped_sum({p: torch.zeros(0, 2, 3).double(), q: torch.zeros(0).double()}, geometry)
    assert torch.equal(total[p], torch.zeros(2, 3).double())
    assert torch.equal(total[q], torch.zeros(()).double())


def test_stacked_gradients_of_the_wrong_shape_are_refused():
    p, q = parameter(2), parameter(3)
    with pytest.raises(ValueError, match="shape"):
        Stacked({p: torch.zeros(4, 3)})
    with pytest.raises(ValueError, match="first length"):
        Stacked({p: torch.zeros(4, 2), q: torch.zeros(5, 3)})


ROWS = ["normal", "normal", "long", "huge", "zero", "at the center", "nan", "inf", "-inf", "one inf"]


@st.composite
def gradients_and_geometry(draw: Any, dtype: torch.dtype) -> tuple[dict[Tensor, Tensor], Geometry]:
    """Draws examples of all kinds, and a geometry with scales and maybe centers, per coordinate or tensor."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    n = draw(st.integers(1, 6))
    kinds = draw(st.lists(st.sampled_from(ROWS), min_size=n, max_size=n))
    gradients, center, scale = {}, {}, {}
    for shape in draw(st.lists(st.sampled_from([(), (3,), (2, 4), (0,)]), min_size=1, max_size=3)):
        p = parameter(*shape, dtype=dtype)
        c = torch.randn(shape, generator=generator, dtype=dtype)
        rows = torch.randn((n, *shape), generator=generator, dtype=dtype)
        for i, kind in enumerate(kinds):
            if kind == "long":
                rows[i] *= 1000
            elif kind == "huge":
                rows[i] *= 1e30
            elif kind == "zero":
                rows[i] = 0
            elif kind == "at the center":
                rows[i] = c
            elif kind != "normal" and rows[i].numel():
                flat = rows[i].view(-1)
                flat[: 1 if kind == "one inf" else None] = INF if kind == "one inf" else float(kind)
        gradients[p] = rows
        width = 10.0 ** draw(st.integers(-1, 2))
        per_coordinate = 0.1 + width * torch.rand(shape, generator=generator, dtype=dtype)
        scale[p] = draw(st.sampled_from([width, torch.tensor(width, dtype=dtype), per_coordinate]))
        if draw(st.booleans()):
            center[p] = draw(st.sampled_from([0.5, c]))
    return gradients, Geometry(center or None, scale)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@settings(max_examples=60)
@given(drawn=st.data())
def test_removing_any_example_moves_the_sum_by_at_most_one(dtype, drawn):
    gradients, geometry = drawn.draw(gradients_and_geometry(dtype))
    whole = clipped_sum(gradients, geometry)
    assert all(total.isfinite().all() for total in whole.values())
    n = len(next(iter(gradients.values())))
    for i in range(n):
        others = torch.arange(n) != i
        without = clipped_sum({p: g[others] for p, g in gradients.items()}, geometry)
        moved = total_norm(whole[p].double() - without[p].double() for p in whole)
        assert moved <= 1 + 1e-6
        finite = all(g[i].isfinite().all() for g in gradients.values())
        if not finite:
            assert moved == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("value", [1e-30, 1e30, 1e37])
def test_one_example_of_extreme_length_moves_the_sum_by_at_most_one(dtype, value):
    p = parameter(5, dtype=dtype)
    total = clipped_sum({p: torch.full((1, 5), value, dtype=dtype)}, Geometry.ball([p], 1.0))
    expected = min(1.0, value * 5**0.5)
    assert total_norm(iter(total.values())) == pytest.approx(expected, rel=1e-6)


# (value, coordinates, radius) at the limits of float32
EXTREMES = [
    (1e-19, 10, 1e-19),
    (1e-25, 10, 1e-26),  # the squares are 0 in float32
    (1.0, 10, 1e-200),  # the radius is 0 in float32
    (1.0, 10, 1e150),
    (1.0, 10, 1e200),  # its square overflows float64
    (3e38, 10, 1.0),
    (3e38, 1_000_000, 1.0),  # the weight is denormal in float32, with 11 bits
]


@pytest.mark.parametrize(("value", "coordinates", "radius"), EXTREMES)
def test_the_bound_holds_at_the_limits_of_float32(value, coordinates, radius):
    p = parameter(coordinates, dtype=torch.float32)
    gradient = torch.full((1, coordinates), value)
    try:
        geometry = Geometry.ball([p], radius)
    except ValueError:  # a radius outside the parameter's dtype may be refused
        return
    total = clipped_sum({p: gradient}, geometry)
    length = total_norm(iter(total.values()))
    assert length <= 1 + 1e-6
    # The example is dropped, or clipped correctly.
    expected = min(1.0, float(gradient[0, 0].double()) * coordinates**0.5 / radius)
    assert length == 0 or length == pytest.approx(expected, rel=1e-5, abs=1e-30)


def test_a_long_example_is_clipped_to_one_in_float32():
    # Over 4M coordinates, a float32 sum of squares is low by 1e-4, which leaves the clipped norm above 1.
    p = parameter(4_000_000, dtype=torch.float32)
    g = torch.randn(1, 4_000_000, generator=torch.Generator().manual_seed(0))
    total = clipped_sum({p: g}, Geometry.ball([p], 1.0))
    assert total_norm(iter(total.values())) == pytest.approx(1.0, abs=1e-6)
