"""Geometry, clipping and the door: what bounds one example's influence, and what is released."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adamas import Geometry, PrivateGradient, clipped_sum, rules
from adamas._numerics.sums import squared_norms
from adamas.clip import clip_weights
from adamas.engines import ENGINES, Loop, Stacked
from adamas.noise import GaussianNoise
from adamas.privatize import _rounding_slack, privatize

NAN, INF = float("nan"), float("inf")


def parameter(*shape: int, dtype: torch.dtype = torch.float64) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape, dtype=dtype))


def total_norm(tensors: Iterator[Tensor]) -> float:
    return sum(float(t.double().square().sum()) for t in tensors) ** 0.5


# --- weights ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clip_weights_of_edge_cases(dtype):
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


def test_clip_weights_just_above_one_shrink():
    norm = torch.tensor([1 + 1e-12], dtype=torch.float64)
    assert float(clip_weights(norm) * norm) <= 1 + 1e-15
    assert float(clip_weights(norm)) < 1


def test_clip_weights_of_no_example():
    assert clip_weights(torch.zeros(0)).shape == (0,)


# --- sums ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("radius", [0.5, 1.0, 2.5, 1e6])
def test_clipped_sum_of_examples_whose_gradient_is_their_number(radius):
    # min(i, C) is the clipped gradient of example i, so whitened the sum is sum_i min(i, C) / C.
    p = parameter()
    gradients = torch.arange(6, dtype=torch.float64)
    total = clipped_sum({p: gradients}, Geometry.ball([p], radius))[p]
    assert float(total) == pytest.approx(sum(min(i, radius) for i in range(6)) / radius, rel=1e-14)


def test_clipped_sum_of_a_mapping_and_of_an_engine_agree():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    # The gradient of sum(W x + b): each row of W gets x, b gets ones.
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


def test_gradients_in_hand_of_the_wrong_shape_are_refused():
    p, q = parameter(2), parameter(3)
    with pytest.raises(ValueError, match="shape"):
        Stacked({p: torch.zeros(4, 3)})
    with pytest.raises(ValueError, match="first length"):
        Stacked({p: torch.zeros(4, 2), q: torch.zeros(5, 3)})


# --- sensitivity --------------------------------------------------------------------------------------

ROWS = ["normal", "normal", "long", "huge", "zero", "at the center", "nan", "inf", "-inf", "one inf"]


@st.composite
def gradients_and_geometry(draw: Any, dtype: torch.dtype) -> tuple[dict[Tensor, Tensor], Geometry]:
    """Examples of all kinds, in a geometry with a center and a scale for each coordinate or tensor."""
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


# (value, coordinates, radius): at the ends of float32.
EXTREMES = [
    (1e-19, 10, 1e-19),
    (1e-25, 10, 1e-26),  # the squares are 0 in float32
    (1.0, 10, 1e-200),  # the radius is 0 in float32
    (1.0, 10, 1e150),
    (1.0, 10, 1e200),  # its square is not a float64
    (3e38, 10, 1.0),
    (3e38, 1_000_000, 1.0),  # the weight has 11 bits in float32
]


@pytest.mark.parametrize(("value", "coordinates", "radius"), EXTREMES)
def test_the_bound_holds_at_the_ends_of_float32(value, coordinates, radius):
    p = parameter(coordinates, dtype=torch.float32)
    gradient = torch.full((1, coordinates), value)
    try:
        geometry = Geometry.ball([p], radius)
    except ValueError:  # a radius that the parameter's type cannot hold may be refused
        return
    total = clipped_sum({p: gradient}, geometry)
    length = total_norm(iter(total.values()))
    assert length <= 1 + 1e-6
    # Dropped, or what it should be.
    expected = min(1.0, float(gradient[0, 0].double()) * coordinates**0.5 / radius)
    assert length == 0 or length == pytest.approx(expected, rel=1e-5, abs=1e-30)


def test_a_long_example_is_clipped_to_one_in_float32():
    # 4M coordinates: a sum of squares in float32 alone would be low by 1e-4, and the clipped norm above 1.
    p = parameter(4_000_000, dtype=torch.float32)
    g = torch.randn(1, 4_000_000, generator=torch.Generator().manual_seed(0))
    total = clipped_sum({p: g}, Geometry.ball([p], 1.0))
    assert total_norm(iter(total.values())) == pytest.approx(1.0, abs=1e-6)


# --- norms in float32 ----------------------------------------------------------------------------------


def test_squared_norms_of_ten_million_float32_values_are_exact_where_torch_is_not():
    rows = torch.randn(1, 10_000_000, generator=torch.Generator().manual_seed(0))
    exact = float(rows.double().square().sum())
    assert abs(float(squared_norms(rows)) / exact - 1) < 1e-6
    # What the function is for: torch's own norm is low, so that its example would be clipped too little.
    plain = float(torch.linalg.vector_norm(rows, dim=1).double().square())
    assert plain / exact - 1 < -1e-4


@pytest.mark.parametrize("columns", [1, 2047, 2048, 2049, 5000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_squared_norms_of_rows_of_any_length_and_type(columns, dtype):
    rows = torch.randn(3, columns, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = rows.double().square().sum(1)
    assert squared_norms(rows).dtype == torch.float64
    torch.testing.assert_close(squared_norms(rows), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(squared_norms(rows.view(3, 1, columns)), expected, rtol=1e-6, atol=0)


def test_squared_norms_that_overflow_float32_are_finite():
    rows = torch.tensor([[1e30, 1e30], [1.0, 2.0], [INF, 0.0], [NAN, 1e30]])
    squares = squared_norms(rows)
    assert float(squares[0]) == pytest.approx(2e60, rel=1e-6)
    assert float(squares[1]) == pytest.approx(5, rel=1e-6)
    assert not squares[2:].isfinite().any()
    long = torch.full((1, 5000), 1e30)
    assert float(squared_norms(long)) == pytest.approx(5e63, rel=1e-6)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0), (4,), (0,)])
def test_squared_norms_of_empty_and_scalar_rows(shape):
    squares = squared_norms(torch.ones(shape))
    assert squares.tolist() == [float(torch.ones(shape[1:]).sum())] * shape[0]


# --- geometry -----------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10**6), many=st.booleans())
def test_unwhiten_inverts_whiten(seed, many):
    torch.manual_seed(seed)
    p, q, r = parameter(2, 3), parameter(3), parameter()
    geometry = Geometry(
        {p: torch.randn(2, 3).double(), q: 0.3},
        {p: torch.rand(2, 3).double() + 0.1, q: 2.0, r: torch.tensor(3.0).double()},
    )
    for x in (p, q, r):
        g = torch.randn((4, *x.shape) if many else x.shape, dtype=torch.float64)
        torch.testing.assert_close(geometry.unwhiten(x, geometry.whiten(x, g)), g, rtol=1e-12, atol=1e-12)


def test_whiten_subtracts_the_center_and_divides_by_the_scale():
    p = parameter(2)
    geometry = Geometry({p: torch.tensor([1.0, 2.0])}, {p: torch.tensor([0.5, 4.0])})
    assert geometry.whiten(p, torch.tensor([[2.0, 0.0]])).tolist() == [[2.0, -0.5]]
    assert geometry.unwhiten(p, torch.tensor([2.0, -0.5])).tolist() == [2.0, 0.0]


def test_ball_has_one_radius_and_no_center():
    p, q = parameter(2), parameter()
    geometry = Geometry.ball(iter([p, q]), radius=3.0)
    assert geometry.scale == {p: 3.0, q: 3.0}
    assert geometry.center_of(p) is None
    assert geometry.whiten(p, torch.tensor([3.0, 6.0])).tolist() == [1.0, 2.0]


def test_scaled_multiplies_the_scale_and_keeps_the_center():
    p, q = parameter(2), parameter()
    geometry = Geometry({p: 1.0}, {p: torch.tensor([1.0, 2.0]), q: 3.0}).scaled(10.0)
    assert geometry.scale[p].tolist() == [10.0, 20.0]
    assert geometry.scale[q] == 30.0
    assert geometry.center_of(p) == 1.0
    assert geometry.center_of(q) is None


def test_an_infinite_number_is_a_scale_that_clips_nothing():
    p = parameter(2)
    geometry = Geometry.ball([p], INF)
    engine = Stacked({p: torch.tensor([[3.0, 4.0], [NAN, 0.0], [INF, 0.0]]).double()})
    assert clip_weights(engine.norms(geometry)).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("scale", [0.0, -1.0, NAN, -INF])
def test_a_number_that_is_no_scale_is_refused(scale):
    with pytest.raises(ValueError, match="scale"):
        Geometry.ball([parameter(2)], scale)


@pytest.mark.parametrize("bad", [0.0, -1.0, NAN, INF, -INF])
@pytest.mark.parametrize("shape", [(3,), ()])
def test_a_coordinate_that_is_no_scale_is_refused(bad, shape):
    p = parameter(*shape)
    scale = torch.ones(shape)
    scale.view(-1)[-1] = bad
    with pytest.raises(ValueError, match="scale"):
        Geometry(None, {p: scale})


def test_shapes_that_do_not_fit_are_refused():
    p = parameter(2, 3)
    with pytest.raises(ValueError, match="scale of shape"):
        Geometry(None, {p: torch.ones(3)})
    with pytest.raises(ValueError, match="center of shape"):
        Geometry({p: torch.zeros(3)}, {p: 1.0})


def test_a_center_without_a_scale_is_refused():
    p, q = parameter(2), parameter(2)
    with pytest.raises(ValueError, match="center"):
        Geometry({q: 0.0}, {p: 1.0})


def test_a_scaled_geometry_is_checked_as_well():
    with pytest.raises(ValueError, match="scale"):
        Geometry.ball([parameter(2)], 1.0).scaled(0.0)


# --- the door -----------------------------------------------------------------------------------------


def release(
    engines: list[tuple[Any, int]],
    geometry: Geometry,
    *,
    z: float = 0.0,
    batch_size: float = 10,
    seed: int = 0,
    charge: Callable[..., tuple[int, ...]] = lambda _: (),
) -> PrivateGradient:
    return privatize(
        engines,
        geometry,
        noise_multiplier=z,
        expected_batch_size=batch_size,
        noise=GaussianNoise(seed),
        charge=charge,
    )


def rows(*values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_divisor_is_the_expected_batch_size_and_not_the_realised_one():
    p = parameter(2)
    engine = Stacked({p: rows([3.0, 4.0], [0.3, 0.4], [0.0, 0.0])})  # 3 examples where 10 are expected
    made = release([(engine, 0)], Geometry.ball([p], 1.0), z=2.0, batch_size=10)
    noise = GaussianNoise(0).normal_(torch.empty(2, dtype=torch.float64))
    torch.testing.assert_close(made.mean[p], (rows([0.9, 1.2])[0] + 2.0 * noise) / 10, rtol=1e-12, atol=0)
    assert made.noise_variance[p] == pytest.approx((2.0 / 10) ** 2)


def test_noise_variance_is_that_of_the_noise_for_each_coordinate():
    torch.manual_seed(0)
    p, q = parameter(3), parameter()
    scale = torch.tensor([0.5, 1.0, 4.0]).double()
    geometry = Geometry(None, {p: scale, q: 0.25})
    made = release([], geometry, z=1.5, batch_size=6)
    torch.testing.assert_close(made.noise_variance[p], (scale * 1.5 / 6) ** 2)
    assert made.noise_variance[q] == pytest.approx((0.25 * 1.5 / 6) ** 2)
    noise = GaussianNoise(1)
    drawn = torch.stack(
        [
            privatize(
                [], geometry, noise_multiplier=1.5, expected_batch_size=6, noise=noise, charge=lambda _: ()
            ).mean[p]
            for _ in range(4000)
        ]
    )
    # A variance of 4000 values is off by 2.2%; 12% is more than 5 standard deviations.
    torch.testing.assert_close(drawn.var(0), made.noise_variance[p], rtol=0.12, atol=0)
    assert bool((drawn.mean(0).abs() < 5 * (made.noise_variance[p] / 4000).sqrt()).all())


def test_missing_examples_count_as_examples_at_the_center():
    p = parameter(2)
    center, scale = torch.tensor([1.0, -2.0]).double(), torch.tensor([2.0, 0.5]).double()
    geometry = Geometry({p: center}, {p: scale})
    gradients = rows([1.5, -2.1], [9.0, 9.0], [NAN, 0.0])  # one within the ball, one clipped, one dropped
    made = release([(Stacked({p: gradients}), 0)], geometry, batch_size=10)
    expected = center + scale * clipped_sum({p: gradients}, geometry)[p] / 10
    torch.testing.assert_close(made.mean[p], expected, rtol=1e-12, atol=1e-12)
    # The same with the seven missing ones, and the non-finite one, put at the center.
    whole = torch.cat([gradients[:2], center.expand(8, 2)])
    same = release([(Stacked({p: whole}), 0)], geometry, batch_size=10)
    torch.testing.assert_close(made.mean[p], same.mean[p], rtol=1e-12, atol=1e-12)


def test_an_empty_batch_gives_noise_around_the_center():
    p = parameter(4)
    geometry = Geometry({p: 3.0}, {p: 2.0})
    noise = GaussianNoise(0).normal_(torch.empty(4, dtype=torch.float64))
    empty = Stacked({p: torch.zeros(0, 4).double()})
    for engines in ([], [(empty, 0)]):
        made = release(engines, geometry, z=1.0, batch_size=5)
        torch.testing.assert_close(made.mean[p], 3.0 + 2.0 / 5 * noise, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("sizes", [[7], [3, 4], [1, 0, 6], [1] * 7])
def test_micro_batches_give_the_release_of_the_whole_batch(centered, sizes):
    torch.manual_seed(0)
    p, q = parameter(3), parameter(2, 2)
    g, h = 3 * torch.randn(7, 3).double(), torch.randn(7, 2, 2).double()
    center = {p: torch.randn(3).double(), q: 0.2} if centered else None
    geometry = Geometry(center, {p: 0.7, q: torch.rand(2, 2).double() + 0.5})
    whole = release([(Stacked({p: g, q: h}), 0)], geometry, z=1.0)
    parts = zip(g.split(sizes), h.split(sizes), strict=True)
    made = release([(Stacked({p: a, q: b}), 0) for a, b in parts], geometry, z=1.0)
    for x in (p, q):
        torch.testing.assert_close(made.mean[x], whole.mean[x], rtol=1e-12, atol=1e-12)


def test_padding_rows_do_not_count():
    p = parameter(2)
    geometry = Geometry({p: 0.5}, {p: 1.0})
    real, padding = rows([3.0, 4.0], [0.3, 0.4]), rows([7.0, 7.0], [0.1, 0.0], [NAN, 1.0])
    plain = release([(Stacked({p: real}), 0)], geometry, z=1.0)
    padded = release([(Stacked({p: torch.cat([real, padding])}), 3)], geometry, z=1.0)
    torch.testing.assert_close(padded.mean[p], plain.mean[p], rtol=1e-12, atol=1e-12)
    only = release([(Stacked({p: real}), 0), (Stacked({p: padding}), 3)], geometry, z=1.0)
    torch.testing.assert_close(only.mean[p], plain.mean[p], rtol=1e-12, atol=1e-12)


def test_recording_happens_once_after_the_data_and_before_the_noise():
    p, q = parameter(2), parameter(2, dtype=torch.float32)  # two types: noise is drawn more than once
    noise = GaussianNoise(0)
    events = []

    def engines() -> Iterator[tuple[Stacked, int]]:
        for i in range(2):
            events.append(f"micro-batch {i}")
            yield Stacked({p: rows([1.0, 1.0]), q: torch.ones(1, 2)}), 0

    def charge(_: object) -> tuple[int, ...]:
        events.append(f"recorded after {noise.draws} draws")
        return ()

    geometry = Geometry.ball([p, q], 1.0)
    privatize(engines(), geometry, noise_multiplier=1.0, expected_batch_size=2, noise=noise, charge=charge)
    assert events == ["micro-batch 0", "micro-batch 1", "recorded after 0 draws"]
    assert noise.draws > 0


def test_if_recording_fails_nothing_is_drawn_or_released():
    p = parameter(2)
    noise = GaussianNoise(0)

    def charge(_: object) -> tuple[int, ...]:
        raise OSError("the ledger's disk is full")

    with pytest.raises(OSError, match="disk"):
        privatize(
            [(Stacked({p: rows([1.0, 1.0])}), 0)],
            Geometry.ball([p], 1.0),
            noise_multiplier=1.0,
            expected_batch_size=2,
            noise=noise,
            charge=charge,
        )
    assert noise.draws == 0
    assert p.grad is None


def test_without_noise_and_clipping_the_release_is_the_mean_gradient():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    x = torch.randn(8, 3, dtype=torch.float64)
    loss = lambda model, x: model(x).square().sum(1)  # noqa: E731
    loss(model, x).mean().backward()
    for engine in ENGINES.values():
        made = release([(engine(model, loss, x), 0)], Geometry.ball(model.parameters(), INF), batch_size=8)
        for p in model.parameters():
            torch.testing.assert_close(made.mean[p], p.grad, rtol=1e-12, atol=1e-12)
            assert made.noise_variance[p] == 0


def test_an_unused_parameter_gets_noise_like_the_others():
    torch.manual_seed(0)
    model = nn.ModuleDict({"used": nn.Linear(3, 2), "unused": nn.Linear(50, 40)}).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    for engine in ENGINES.values():
        built = engine(model, lambda model, x: model["used"](x).sum(1), x)
        made = release([(built, 0)], Geometry.ball(model.parameters(), 1.0), z=1.0, batch_size=4)
        # 2000 values: their standard deviation is off by 1.6%, so 8% is 5 standard deviations.
        assert float(made.mean[model["unused"].weight].std()) == pytest.approx(1 / 4, rel=0.08)
        assert made.noise_variance[model["unused"].weight] == pytest.approx(1 / 16)


def test_noise_is_independent_between_parameters():
    params = [parameter(500) for _ in range(3)] + [parameter(500, dtype=torch.float32) for _ in range(2)]
    made = release([], Geometry.ball(params, 1.0), z=1.0, batch_size=1)
    for a, b in itertools.combinations(params, 2):
        correlation = torch.corrcoef(torch.stack([made.mean[a], made.mean[b].double()]))[0, 1]
        assert abs(float(correlation)) < 5 / 500**0.5


def test_bfloat16_parameters_are_released_in_float32_and_written_in_their_type():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).bfloat16()
    x = torch.randn(5, 3).bfloat16()
    engine = Loop(model, lambda model, x: model(x).sum(1), x)
    made = release([(engine, 0)], Geometry.ball(model.parameters(), 0.1), z=1.0, batch_size=5)
    noise = GaussianNoise(0).normal_(torch.empty(8))
    x = x.float()
    clipped = sum(0.1 * g / max(0.1, float(g.norm())) for g in torch.cat([x, x, torch.ones(5, 2)], 1))
    expected = (clipped[:6].view(2, 3) + 0.1 * noise[:6].view(2, 3)) / 5
    assert made.mean[model.weight].dtype == torch.float32
    torch.testing.assert_close(made.mean[model.weight], expected, rtol=1e-5, atol=1e-6)
    rule = rules.SGD(model.parameters(), lr=1.0)
    made.write_to(rule)
    assert model.weight.grad.dtype == torch.bfloat16
    torch.testing.assert_close(model.weight.grad, expected.bfloat16())


def test_the_scale_and_center_may_be_of_another_type_than_the_parameter():
    p = parameter(3, dtype=torch.float32)
    scale, center = torch.rand(3).double() + 1, torch.randn(3).double()
    gradients = torch.randn(2, 3)
    made = release([(Stacked({p: gradients}), 0)], Geometry({p: center}, {p: scale}), z=1.0)
    same = Geometry({p: center.float()}, {p: scale.float()})
    expected = release([(Stacked({p: gradients}), 0)], same, z=1.0)
    assert made.mean[p].dtype == torch.float32
    torch.testing.assert_close(made.mean[p], expected.mean[p], rtol=1e-5, atol=1e-6)


# (noise multiplier, expected batch size, radius) that the door cannot release.
UNRELEASABLE = [(1.0, 0, 1.0), (1.0, -3, 1.0), (-1.0, 2, 1.0), (NAN, 2, 1.0), (INF, 2, 1.0), (1.0, 2, INF)]


@pytest.mark.parametrize(("z", "batch_size", "radius"), UNRELEASABLE)
def test_what_cannot_be_released_is_refused_before_it_is_recorded(z, batch_size, radius):
    p = parameter(2)
    recorded = []
    engine = Stacked({p: rows([1.0, 1.0])})
    with pytest.raises(ValueError, match="Expected"):
        release(
            [(engine, 0)],
            Geometry.ball([p], radius),
            z=z,
            batch_size=batch_size,
            charge=lambda _: recorded.append(1) or (),
        )
    assert not recorded


def test_one_infinite_or_nan_example_does_not_reach_the_release():
    p = parameter(2)
    good, bad = rows([3.0, 4.0], [0.1, 0.0]), rows([NAN, 1.0], [INF, INF], [-INF, 0.0])
    geometry = Geometry.ball([p], 1.0)
    clean = release([(Stacked({p: good}), 0)], geometry, z=1.0)
    made = release([(Stacked({p: torch.cat([bad, good])}), 0)], geometry, z=1.0)
    torch.testing.assert_close(made.mean[p], clean.mean[p], rtol=1e-12, atol=0)


# --- the release --------------------------------------------------------------------------------------


def test_a_release_whose_parts_do_not_fit_is_refused():
    p, q = parameter(2), parameter(3)
    with pytest.raises(ValueError, match="same parameters"):
        PrivateGradient({p: torch.zeros(2)}, {q: 0.0})
    with pytest.raises(ValueError, match="mean of shape"):
        PrivateGradient({p: torch.zeros(3)}, {p: 0.0})
    with pytest.raises(ValueError, match="noise_variance of shape"):
        PrivateGradient({p: torch.zeros(2)}, {p: torch.zeros(3)})


def test_a_stock_optimizer_gets_the_mean_as_gradient():
    p = parameter(2)
    optimizer = torch.optim.SGD([p], lr=1.0)
    PrivateGradient({p: rows([1.0, 2.0])[0]}, {p: 0.5}).write_to(optimizer)
    optimizer.step()
    assert p.tolist() == [-1.0, -2.0]


def test_what_happens_to_a_gradient_does_not_change_the_release():
    p = parameter(2)
    made = PrivateGradient({p: rows([1.0, 2.0])[0]}, {p: 0.5})
    made.write_to(torch.optim.SGD([p], lr=1.0))
    p.sum().backward()  # accumulates a raw gradient into p.grad
    assert made.mean[p].tolist() == [1.0, 2.0]


def test_a_stock_optimizer_does_not_step_on_an_old_gradient_of_a_frozen_parameter():
    p, frozen = parameter(2), parameter(2)
    (p.sum() + frozen.sum()).backward()  # raw gradients of both
    frozen.requires_grad_(False)
    optimizer = torch.optim.SGD([p, frozen], lr=1.0)
    PrivateGradient({p: rows([1.0, 2.0])[0]}, {p: 0.5}).write_to(optimizer)
    optimizer.step()
    assert p.tolist() == [-1.0, -2.0]
    assert frozen.tolist() == [0.0, 0.0]


# --- magnitudes, and centers that are far away ----------------------------------------------------------


def test_the_magnitudes_of_the_sum_are_released_before_the_noise():
    p = parameter(2)
    gradients = Stacked({p: rows([0.3, -0.4], [0.3, -0.4], [-0.9, 0.0])})
    arguments = {
        "noise_multiplier": 0.5,
        "expected_batch_size": 2,
        "charge": lambda _: (),
    }
    ball = Geometry.ball([p])
    drawn = GaussianNoise(3).normal_(torch.empty(2, dtype=torch.float64), 0.25)
    made = privatize([(gradients, 0)], ball, noise=GaussianNoise(3), absolute=True, **arguments)
    torch.testing.assert_close(made.mean[p], torch.tensor([0.15, 0.4], dtype=torch.float64) + drawn)
    with pytest.raises(ValueError, match="absolute"):
        privatize(
            [(gradients, 0)], Geometry({p: 1.0}, {p: 1.0}), noise=GaussianNoise(3), absolute=True, **arguments
        )


@pytest.mark.parametrize(("length", "n"), [(10.0, 4096), (1000.0, 4096), (15_000.0, 256), (100_000.0, 10)])
def test_rounding_around_a_far_center_stays_within_the_ball(length, n):
    # All examples near the center, at almost the radius: the worst that float32 sums can meet.
    torch.manual_seed(0)
    d = 500
    model = nn.Linear(d, 1, bias=False)
    p = model.weight
    center = torch.randn(1, d)
    center = center / center.norm() * length
    away = torch.randn(n, d)
    examples = center + away / away.norm(dim=1, keepdim=True) * 0.999
    geometry = Geometry({p: center}, {p: 1.0})
    radius = 1 - _rounding_slack(geometry, n, exact=False)
    assert radius < 1

    def clipped(x: Tensor) -> Tensor:
        engine = ENGINES["bookkeeping"](model, lambda model, x: model(x).squeeze(1), x)
        weights = clip_weights(engine.norms(geometry)).mul_(radius)
        total = engine.weighted_sum(weights)[p]
        return total.double() - float(weights.sum()) * center.double()

    whole = clipped(examples)
    for gone in range(0, n, n // 4):
        assert float((whole - clipped(examples[torch.arange(n) != gone])).norm()) <= 1


def test_a_center_that_is_too_far_for_float32_is_refused():
    p = parameter(2, dtype=torch.float32)
    far = Geometry({p: 1e9}, {p: 1.0})
    with pytest.raises(ValueError, match="center"):
        release([], far)
    double = parameter(2)
    release([], Geometry({double: 1e9}, {double: 1.0}))
