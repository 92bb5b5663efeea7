"""A release adds its noise in place, and is the same however the batch is cut into micro-batches."""

from collections.abc import Callable, Mapping
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from adamas import Geometry, PrivateGradient
from adamas.engines import Bookkeeping
from adamas.noise import _BLOCK, GaussianNoise
from tests.support.one_by_one import ball, loss
from tests.support.step_models import GEOMETRIES, N, conv, embedding, mlp, release, standardised_conv

# --- noise --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [0, 1, 5, _BLOCK, 3 * _BLOCK + 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_added_noise_equals_drawn_noise(dtype: torch.dtype, size: int, threads: int) -> None:
    torch.set_num_threads(threads)
    drawing, adding, onto = GaussianNoise(4), GaussianNoise(4), GaussianNoise(4)
    for count, std in enumerate((1.0, 0.3), start=1):
        drawn = drawing.normal_(torch.empty(size, dtype=dtype), std)
        out = torch.zeros(size, dtype=dtype)
        assert adding.add_normal_(out, std) is out
        assert torch.equal(out, drawn)
        threes = torch.full((size,), 3.0, dtype=dtype)
        onto.add_normal_(threes, std)
        assert torch.equal(threes, 3 + drawn)
        assert drawing.draws == adding.draws == onto.draws == count


def test_noise_is_added_within_its_view_only() -> None:
    noise = GaussianNoise(4)
    buffer = torch.full((40,), 3.0)
    noise.add_normal_(buffer[10:30])
    assert torch.equal(buffer[:10], torch.full((10,), 3.0))
    assert torch.equal(buffer[30:], torch.full((10,), 3.0))
    again = GaussianNoise(4).normal_(torch.empty(20))
    assert torch.equal(buffer[10:30], 3 + again)


def test_adding_and_drawing_noise_share_one_counter() -> None:
    plain, mixed = GaussianNoise(4), GaussianNoise(4)
    expected = [plain.normal_(torch.empty(33)) for _ in range(4)]
    made = [mixed.add_normal_(torch.zeros(33)) if i % 2 else mixed.normal_(torch.empty(33)) for i in range(4)]
    assert all(map(torch.equal, made, expected))
    assert not torch.equal(made[0], made[1])


# --- batches ------------------------------------------------------------------------------------------


def relative(actual: Mapping[Tensor, Tensor], expected: Mapping[Tensor, Tensor]) -> float:
    assert set(actual) == set(expected)
    return max(
        float((actual[p] - value).abs().max()) / float(value.abs().max()) for p, value in expected.items()
    )


@pytest.mark.parametrize("make", [mlp, conv, standardised_conv, embedding])
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("cuts", [[3], [1, 4], [0, 2]], ids=["two", "three", "one empty"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_micro_batches_do_not_change_the_release(
    make: Callable[[], tuple[nn.Module, Tensor]],
    geometry: str,
    cuts: list[int],
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    torch.set_default_dtype(dtype)
    model, x = make()
    batch, asked = (x, torch.rand(N)), GEOMETRIES[geometry](model)
    whole = release([(Bookkeeping(model, loss, batch), 0)], asked)
    edges = [0, *cuts, N]
    parts = [tuple(t[i:j] for t in batch) for i, j in pairwise(edges)]
    made = release([(Bookkeeping(model, loss, part), 0) for part in parts], asked)
    assert relative(made.mean, whole.mean) <= tolerance
    assert relative(release([], asked).mean, whole.mean) > 1e-3


@pytest.mark.parametrize("geometry", [*GEOMETRIES, "center"])
@pytest.mark.parametrize("with_engine", [False, True], ids=["no engine", "an empty engine"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_empty_batch_releases_noise_around_the_center(
    geometry: str, with_engine: bool, dtype: torch.dtype
) -> None:
    torch.set_default_dtype(dtype)
    model, x = mlp()
    params = list(model.parameters())
    asked = Geometry({p: 0.5 for p in params}, dict.fromkeys(params, 2.0))
    asked = GEOMETRIES[geometry](model) if geometry in GEOMETRIES else asked
    none = [(Bookkeeping(model, loss, (x[:0], torch.rand(0))), 0)] if with_engine else []
    made = release(none, asked, GaussianNoise(3), z=1.5)
    drawn = GaussianNoise(3).normal_(torch.empty(sum(p.numel() for p in params)))
    expected = {}
    for p, values in zip(params, torch.split(drawn, [p.numel() for p in params]), strict=True):
        center = asked.center_of(p)
        noise = values.view(p.shape) * asked.scale[p] * 1.5 / 8
        expected[p] = noise if center is None else noise + center
    assert relative(made.mean, expected) <= 4 * torch.finfo(dtype).eps


def test_a_kept_release_is_not_changed_by_the_next_step() -> None:
    model, x = conv()
    noise = GaussianNoise(0)
    kept: list[tuple[PrivateGradient, dict[Tensor, Tensor]]] = []
    for _ in range(3):
        made = release([(Bookkeeping(model, loss, (x, torch.rand(N))), 0)], ball(model), noise)
        kept.append((made, {p: mean.clone() for p, mean in made.mean.items()}))
    for made, before in kept:
        assert all(torch.equal(made.mean[p], value) for p, value in before.items())
    storages = {mean.untyped_storage().data_ptr() for made, _ in kept for mean in made.mean.values()}
    assert len(storages) >= len(kept)
    assert not any(torch.equal(kept[0][1][p], kept[1][1][p]) for p in kept[0][1])
