"""Noise is a function of seed and position, and is drawn once for a release."""

import math

import pytest
import torch
from torch.nn import Parameter

from adamas import Geometry
from adamas.noise import _BLOCK, GaussianNoise
from tests.support.p_values import ALPHA, correlation_p_value
from tests.support.releases import released


def test_no_two_draws_blocks_parameters_or_seeds_share_values():
    n = 2 * _BLOCK + 100
    first = GaussianNoise(0)
    pieces = [first.normal_(torch.empty(n)) for _ in range(3)]
    for seed in (1, 2**32, 2**32 + 1, 2**64, 2**255, None):
        pieces.append(GaussianNoise(seed).normal_(torch.empty(n)))
    params = [Parameter(torch.zeros(_BLOCK)), Parameter(torch.zeros(_BLOCK, 1)), Parameter(torch.zeros(99))]
    release = released(Geometry.ball(params), seed=7)
    pieces += [release.mean[p].flatten() for p in params]
    heads = [part[:50] for piece in pieces for part in piece.split(_BLOCK)]
    assert len({tuple(head.tolist()) for head in heads}) == len(heads) == 9 * 3 + 3


def test_seeds_that_torch_confuses_give_different_noise():
    def torch_values(seed):
        return torch.randn(100, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(torch_values(5), torch_values(5 + 2**32))  # torch keeps only 32 bits

    def ours(seed):
        return GaussianNoise(seed).normal_(torch.empty(100))

    assert torch.equal(ours(5), ours(5))
    a, b = ours(5), ours(5 + 2**32)
    assert not (a == b).any()
    assert correlation_p_value(a.numpy(), b.numpy()) > ALPHA


@pytest.fixture
def thread_count():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_values_do_not_depend_on_the_number_of_threads(thread_count, dtype):
    drawn = []
    for threads in (1, 2, 3):
        thread_count(threads)
        noise = GaussianNoise(1)
        drawn.append([noise.normal_(torch.empty(n, dtype=dtype)) for n in (5, 4 * _BLOCK + 17, _BLOCK)])
    for other in drawn[1:]:
        for a, b in zip(drawn[0], other, strict=True):
            assert torch.equal(a, b)


def test_a_release_does_not_depend_on_the_number_of_threads(thread_count):
    params = [Parameter(torch.zeros(2 * _BLOCK)), Parameter(torch.zeros(5, 5))]
    geometry = Geometry.ball(params)
    results = []
    for threads in (1, 2):
        thread_count(threads)
        results.append(released(geometry, seed=4).mean)
    assert all(torch.equal(results[0][p], results[1][p]) for p in params)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 1000, _BLOCK, _BLOCK + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_are_reproduced_from_seed_and_counter(n, dtype):
    noise = GaussianNoise(9)
    for _ in range(3):
        noise.normal_(torch.empty(7))
    state = noise.state_dict()
    expected = [noise.normal_(torch.empty(n, dtype=dtype)) for _ in range(2)]
    resumed = GaussianNoise(9)
    resumed.load_state_dict(state)
    for values in expected:
        assert torch.equal(resumed.normal_(torch.empty(n, dtype=dtype)), values)
    assert not torch.equal(expected[0], expected[1])


def test_the_state_is_the_counter_without_the_seed():
    noise = GaussianNoise(123_456_789)
    noise.normal_(torch.empty(3))
    assert noise.state_dict() == {"draws": 1}


def test_a_draw_does_not_depend_on_the_sizes_of_earlier_draws():
    a, b = GaussianNoise(2), GaussianNoise(2)
    a.normal_(torch.empty(3))
    b.normal_(torch.empty(2 * _BLOCK))
    assert torch.equal(a.normal_(torch.empty(50)), b.normal_(torch.empty(50)))


def test_noise_of_secret_seeds_differs():
    assert not torch.equal(GaussianNoise().normal_(torch.empty(20)), GaussianNoise().normal_(torch.empty(20)))


def test_the_global_generator_is_neither_used_nor_changed():
    torch.manual_seed(0)
    first = GaussianNoise(0).normal_(torch.empty(2 * _BLOCK))
    assert torch.rand(()).item() == torch.rand((), generator=torch.Generator().manual_seed(0)).item()
    torch.manual_seed(1)
    assert torch.equal(GaussianNoise(0).normal_(torch.empty(2 * _BLOCK)), first)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), (), (2, 3, 4)])
def test_every_shape_is_filled_in_place(shape):
    out = torch.full(shape, math.nan)
    assert GaussianNoise(0).normal_(out) is out
    assert out.isfinite().all()


def test_a_tensor_that_cannot_be_filled_in_place_is_refused():
    with pytest.raises(RuntimeError, match="view"):
        GaussianNoise(0).normal_(torch.empty(4, 5).t())


def test_without_noise_nothing_is_drawn_and_the_variance_is_zero():
    p = Parameter(torch.zeros(4))
    noise = GaussianNoise(0)
    release = released(Geometry.ball([p]), noise=noise, noise_multiplier=0.0)
    assert noise.draws == 0
    assert release.mean[p].tolist() == [0.0] * 4
    assert release.noise_variance[p] == 0.0


@pytest.mark.parametrize("noise_multiplier", [-1.0, math.nan])
def test_a_meaningless_multiplier_never_means_no_noise(noise_multiplier):
    p = Parameter(torch.zeros(4))
    with pytest.raises(ValueError, match="noise_multiplier"):
        released(Geometry.ball([p]), noise_multiplier=noise_multiplier)


def test_one_draw_is_scaled_for_every_coordinate_of_a_release():
    shapes = [
        (300, 301),
        (7,),
        (129, 600),
        (1,),
    ]  # some parts end within blocks, and some blocks within parts
    params = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    random = torch.Generator().manual_seed(0)
    scales = [
        torch.rand(shapes[0], generator=random) + 0.1,
        2.0,
        torch.rand(shapes[2][::-1], generator=random).t() + 0.1,
        torch.tensor(3.0),
    ]
    geometry = Geometry({params[0]: torch.ones(shapes[0])}, dict(zip(params, scales, strict=True)))
    sizes = [p.numel() for p in params]
    flat = torch.randn(sum(sizes), generator=random)
    before = flat.clone()
    views = [part.view(p.shape) for part, p in zip(torch.split(flat, sizes), params, strict=True)]
    parts = dict(zip(params, views, strict=True))
    GaussianNoise(5).release_(flat, parts, geometry, std=0.37, share=0.75, key=(3,))

    unit = GaussianNoise(5).add_normal_(torch.zeros(sum(sizes)), 1.0, (3,))
    spread = torch.cat(
        [torch.as_tensor(s).expand(p.shape).reshape(-1) for s, p in zip(scales, params, strict=True)]
    )
    expected = before + 0.37 * spread * unit
    expected[: sizes[0]] += 0.25
    torch.testing.assert_close(flat, expected, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(flat, before + 0.37 * unit, atol=1e-2)
