"""Geometry: whitening and its inverse, and the centers and scales it refuses."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adamas import Geometry
from adamas.clip import clip_weights
from adamas.engines import Stacked
from tests.support.releases import parameter

NAN, INF = float("nan"), float("inf")


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


def test_an_infinite_scale_clips_nothing():
    p = parameter(2)
    geometry = Geometry.ball([p], INF)
    engine = Stacked({p: torch.tensor([[3.0, 4.0], [NAN, 0.0], [INF, 0.0]]).double()})
    assert clip_weights(engine.norms(geometry)).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("scale", [0.0, -1.0, NAN, -INF])
def test_a_scale_that_is_not_positive_is_refused(scale):
    with pytest.raises(ValueError, match="scale"):
        Geometry.ball([parameter(2)], scale)


@pytest.mark.parametrize("bad", [0.0, -1.0, NAN, INF, -INF])
@pytest.mark.parametrize("shape", [(3,), ()])
def test_a_scale_with_a_bad_coordinate_is_refused(bad, shape):
    p = parameter(*shape)
    scale = torch.ones(shape)
    scale.view(-1)[-1] = bad
    with pytest.raises(ValueError, match="scale"):
        Geometry(None, {p: scale})


def test_a_center_or_scale_of_another_shape_is_refused():
    p = parameter(2, 3)
    with pytest.raises(ValueError, match="scale of shape"):
        Geometry(None, {p: torch.ones(3)})
    with pytest.raises(ValueError, match="center of shape"):
        Geometry({p: torch.zeros(3)}, {p: 1.0})


def test_a_center_without_a_scale_is_refused():
    p, q = parameter(2), parameter(2)
    with pytest.raises(ValueError, match="center"):
        Geometry({q: 0.0}, {p: 1.0})


def test_scaling_by_zero_is_refused():
    with pytest.raises(ValueError, match="scale"):
        Geometry.ball([parameter(2)], 1.0).scaled(0.0)
