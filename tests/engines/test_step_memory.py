"""A step leaves no cycles and no shared buffers, and adds sums and noise in place."""

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adamas import Geometry, PrivateGradient
from adamas.engines import Bookkeeping, Engine, Loop, Stacked, Vmap, trainable_parameters
from adamas.engines.bookkeeping.convolution import Convolution
from adamas.engines.bookkeeping.outer import Outer
from adamas.engines.bookkeeping.records import Dense
from adamas.noise import _BLOCK, GaussianNoise
from adamas.privatize import privatize
from tests.support.one_by_one import ball, close, loss, one_by_one, some_weights, summed, whitened_norms
from tests.support.through import Through

N = 6
NAN = float("nan")

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")

Batch = tuple[Tensor, ...]


# --- models -------------------------------------------------------------------------------------------


def standardised(w: Tensor) -> Tensor:
    var, mean = torch.var_mean(w, dim=(1, 2, 3), keepdim=True)
    return (w - mean) * torch.rsqrt(var + 1e-5)


def mlp() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3)), torch.randn(N, 5)


def places() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), torch.randn(N, 12, 5)


def conv() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 3, padding=1))
    return model, torch.randn(N, 3, 6, 6)


def few_pixels() -> tuple[nn.Module, Tensor]:
    """Makes two layers; the second has large gradients, so that its input is kept."""
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 8, 3, padding=1)), torch.randn(
        N, 3, 4, 4
    )


def standardised_conv() -> tuple[nn.Module, Tensor]:
    model = Through(
        lambda m, x: F.conv2d(m.first(x).tanh(), standardised(m.w), m.b),
        first=nn.Conv2d(3, 4, 3),
        w=nn.Parameter(torch.randn(2, 4, 3, 3)),
        b=nn.Parameter(torch.randn(2)),
    )
    return model, torch.randn(N, 3, 6, 6)


def columns_normalised() -> tuple[nn.Module, Tensor]:
    model = Through(lambda m, x: F.linear(x, F.normalize(m.w, dim=0)), w=nn.Parameter(torch.randn(4, 5)))
    return model, torch.randn(N, 5)


def transformer() -> tuple[nn.Module, Tensor]:
    return nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True), torch.randn(N, 4, 8)


def lstm() -> tuple[nn.Module, Tensor]:
    return Through(lambda m, x: m.rnn(x)[0], rnn=nn.LSTM(4, 5, batch_first=True)), torch.randn(N, 3, 4)


def embedding() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 3))
    return model, torch.randint(11, (N, 5))


def general() -> tuple[nn.Module, Tensor]:
    model = Through(
        lambda m, x: torch.einsum("bi,oi->bo", x, m.w) * m.scale,
        w=nn.Parameter(torch.randn(3, 5)),
        scale=nn.Parameter(torch.randn(3)),
    )
    return model, torch.randn(N, 5)


MODELS = (
    *(mlp, places, conv, few_pixels, standardised_conv, columns_normalised, transformer, lstm, embedding),
    general,
)


def per_coordinate(model: nn.Module) -> Geometry:
    params = trainable_parameters(model).values()
    center = {p: 0.1 * torch.randn(p.shape, dtype=p.dtype) for p in params}
    return Geometry(center, {p: 0.5 + torch.rand(p.shape, dtype=p.dtype) for p in params})


GEOMETRIES = {"flat": ball, "per coordinate": per_coordinate}


def release(
    engines: list[tuple[Engine, int]], geometry: Geometry, noise: GaussianNoise | None = None, z: float = 1.0
) -> PrivateGradient:
    return privatize(
        engines,
        geometry,
        noise_multiplier=z,
        expected_batch_size=8,
        noise=GaussianNoise(3) if noise is None else noise,
        charge=lambda _: (),
    )


# --- what is freed ------------------------------------------------------------------------------------


@contextmanager
def no_collector() -> Iterator[None]:
    """Disables the garbage collector, so that only reference counts free memory."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def references(built: Bookkeeping) -> list[weakref.ref[Any]]:
    """Returns weak references to the engine, its records and the tensors that these hold."""
    assert built._direct is not None
    held = [*built._direct.values(), *(records for _, records in built._derived)]
    found: list[Any] = [built, *(t for t, _ in built._derived)]
    for record in (record for records in held for record in records):
        found += [record, *(value for value in vars(record).values() if isinstance(value, Tensor))]
    return [weakref.ref(value) for value in found]


@pytest.mark.slow
@pytest.mark.parametrize("make", MODELS)
def test_an_engine_is_freed_without_the_collector(make: Callable[[], tuple[nn.Module, Tensor]]) -> None:
    activations: list[weakref.ref[Any]] = []

    def watched(model: nn.Module, batch: Batch) -> Tensor:
        out = model(batch[0])
        activations.append(weakref.ref(out))
        return batch[1] * out.flatten(1).square().sum(1)

    model, x = make()
    batch = (x, torch.rand(N))
    with no_collector():
        for geometry in GEOMETRIES.values():
            built = Bookkeeping(model, watched, batch)  # the first probes the model
            norms = built.norms(geometry(model))
            sums = built.weighted_sum(1 / norms)
            held = references(built)
            assert len(held) >= 4
            assert all(reference() is not None for reference in held)
            del built, norms, sums
            assert [reference() for reference in held if reference() is not None] == []
            assert activations
            assert [reference() for reference in activations if reference() is not None] == []


def live_tensors() -> int:
    return sum(issubclass(type(value), Tensor) for value in gc.get_objects())


@pytest.mark.slow
@pytest.mark.parametrize("make", MODELS)
def test_steps_do_not_pile_up_tensors(make: Callable[[], tuple[nn.Module, Tensor]]) -> None:
    model, x = make()
    batch, noise = (x, torch.rand(N)), GaussianNoise(0)
    halves = [tuple(t[: N // 2] for t in batch), tuple(t[N // 2 :] for t in batch)]
    asked = [geometry(model) for geometry in GEOMETRIES.values()]

    def step(geometry: Geometry) -> None:
        release([(Bookkeeping(model, loss, half), 0) for half in halves], geometry, noise)

    for geometry in asked:
        step(geometry)
    with no_collector():
        before = live_tensors()
        for geometry in asked * 5:
            step(geometry)
        assert live_tensors() == before


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


# --- sums ---------------------------------------------------------------------------------------------


class Sparing(nn.Module):
    """Has a parameter that no example uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 2)
        self.spare = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh())


def stacked(model: nn.Module, loss: Callable[..., Tensor], batch: Batch) -> Stacked:
    params = trainable_parameters(model).values()
    gradients = one_by_one(model, batch, loss)
    shapes = {p: torch.zeros((0, *p.shape), dtype=p.dtype) for p in params}
    return Stacked({p: torch.stack([g[p] for g in gradients]) if gradients else shapes[p] for p in params})


ENGINES = {"bookkeeping": Bookkeeping, "vmap": Vmap, "loop": Loop, "stacked": stacked}
engines = pytest.mark.parametrize("engine", ENGINES)


def filled(model: nn.Module, value: float) -> dict[Tensor, Tensor]:
    params = trainable_parameters(model).values()
    return {p: torch.full(p.shape, value, dtype=torch.promote_types(p.dtype, torch.float32)) for p in params}


def double_case(n: int = N) -> tuple[Sparing, Batch]:
    torch.set_default_dtype(torch.float64)
    return Sparing(), (torch.randn(n, 4), 0.5 + torch.rand(n))


@engines
@pytest.mark.parametrize("asked_first", [True, False], ids=["norms first", "no norms"])
def test_a_sum_overwrites_or_adds(engine: str, asked_first: bool) -> None:
    model, batch = double_case()
    built, weights = ENGINES[engine](model, loss, batch), some_weights(N)
    if asked_first:
        built.norms(ball(model))
    expected = summed(one_by_one(model, batch), weights)
    out = filled(model, NAN)
    assert built.weighted_sum(weights, out) is out
    for p, total in expected.items():
        close(out[p], total, 1e-12)
    assert not out[model.spare].any()

    assert built.weighted_sum(weights, out, accumulate=True) is out
    for p, total in expected.items():
        close(out[p], 2 * total, 1e-12)

    started = filled(model, 3.0)
    tensors = dict(started)
    built.weighted_sum(weights, started, accumulate=True)
    for p, total in expected.items():
        assert started[p] is tensors[p]
        close(started[p], 3 + total, 1e-12)
    assert torch.equal(started[model.spare], torch.full((3,), 3.0))

    fresh = built.weighted_sum(weights)
    assert set(fresh) == set(expected)
    for p, total in expected.items():
        close(fresh[p], total, 1e-12)


@pytest.mark.parametrize("make", MODELS)
def test_every_record_overwrites_or_adds(make: Callable[[], tuple[nn.Module, Tensor]]) -> None:
    torch.set_default_dtype(torch.float64)
    model, x = make()
    batch, weights = (x, 0.5 + torch.rand(N)), some_weights(N)
    expected = summed(one_by_one(model, batch), weights)
    for geometry in (ball(model), per_coordinate(model)):
        built = Bookkeeping(model, loss, batch)
        built.norms(geometry)
        out = filled(model, NAN)
        built.weighted_sum(weights, out)
        for p, total in expected.items():
            close(out[p], total)
        out = filled(model, 3.0)
        built.weighted_sum(weights, out, accumulate=True)
        for p, total in expected.items():
            close(out[p], 3 + total)


@engines
def test_a_sum_over_no_examples_is_zero_or_adds_nothing(engine: str) -> None:
    model, batch = double_case(0)
    built, none = ENGINES[engine](model, loss, batch), torch.zeros(0, dtype=torch.float64)
    assert built.norms(ball(model)).shape == (0,)
    out = filled(model, NAN)
    assert built.weighted_sum(none, out) is out
    assert not any(total.any() for total in out.values())
    assert not any(total.any() for total in built.weighted_sum(none).values())
    out = filled(model, 3.0)
    built.weighted_sum(none, out, accumulate=True)
    assert all(bool((total == 3).all()) for total in out.values())


@engines
@pytest.mark.parametrize("lost", [[N - 1], [0, 3], list(range(N))], ids=["last", "some", "all"])
def test_examples_of_weight_0_take_no_part(engine: str, lost: list[int]) -> None:
    model, batch = double_case()
    weights = 0.5 + torch.rand(N)
    weights[lost] = 0
    expected = summed(one_by_one(model, batch), weights)
    broken = (batch[0], batch[1].clone())
    broken[1][lost] = NAN
    built = ENGINES[engine](model, loss, broken)
    assert built.norms(ball(model)).isnan().tolist() == [i in lost for i in range(N)]
    out = filled(model, NAN)
    built.weighted_sum(weights, out)
    for p, total in expected.items():
        close(out[p], total, 1e-12)
    built.weighted_sum(weights, out, accumulate=True)
    for p, total in expected.items():
        close(out[p], 2 * total, 1e-12)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5).bfloat16(), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.bfloat16()).float().tanh())


@engines
def test_sums_of_16_bit_parameters_are_float32(engine: str) -> None:
    model, batch = Mixed(), (torch.randn(N, 4), 0.5 + torch.rand(N))
    built, weights = ENGINES[engine](model, loss, batch), some_weights(N)
    gradients = [{p: g.double() for p, g in one.items()} for one in one_by_one(model, batch)]
    expected = summed(gradients, weights)
    sums = built.weighted_sum(weights)
    assert {total.dtype for total in sums.values()} == {torch.float32}
    out = filled(model, NAN)
    built.weighted_sum(weights, out)
    started = filled(model, 3.0)
    built.weighted_sum(weights, started, accumulate=True)
    for p, total in expected.items():
        size = 1 + float(total.norm())
        assert float((sums[p] - total).norm()) <= 2e-2 * size
        assert torch.equal(out[p], sums[p])
        torch.testing.assert_close(started[p], 3 + sums[p], rtol=1e-5, atol=1e-5)


# --- noise --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [0, 1, 5, _BLOCK, 3 * _BLOCK + 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_noise_is_added_as_it_is_drawn(dtype: torch.dtype, size: int, threads: int) -> None:
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


def test_noise_that_is_added_changes_nothing_beside() -> None:
    noise = GaussianNoise(4)
    buffer = torch.full((40,), 3.0)
    noise.add_normal_(buffer[10:30])
    assert torch.equal(buffer[:10], torch.full((10,), 3.0))
    assert torch.equal(buffer[30:], torch.full((10,), 3.0))
    again = GaussianNoise(4).normal_(torch.empty(20))
    assert torch.equal(buffer[10:30], 3 + again)


def test_draws_of_both_kinds_take_turns() -> None:
    plain, mixed = GaussianNoise(4), GaussianNoise(4)
    expected = [plain.normal_(torch.empty(33)) for _ in range(4)]
    made = [mixed.add_normal_(torch.zeros(33)) if i % 2 else mixed.normal_(torch.empty(33)) for i in range(4)]
    assert all(map(torch.equal, made, expected))
    assert not torch.equal(made[0], made[1])


# --- micro-batches ------------------------------------------------------------------------------------


def relative(actual: Mapping[Tensor, Tensor], expected: Mapping[Tensor, Tensor]) -> float:
    assert set(actual) == set(expected)
    return max(
        float((actual[p] - value).abs().max()) / float(value.abs().max()) for p, value in expected.items()
    )


@pytest.mark.parametrize("make", [mlp, conv, standardised_conv, embedding])
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("cuts", [[3], [1, 4], [0, 2]], ids=["two", "three", "one of none"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_micro_batches_release_the_same(
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
@pytest.mark.parametrize("with_engine", [False, True], ids=["no engine", "an engine of no examples"])
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


# --- gradients that are kept for the sum --------------------------------------------------------------


def of_coordinates(model: nn.Module) -> Geometry:
    return Geometry(None, per_coordinate(model).scale)


KEPT_CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Callable[..., Geometry], bool]] = {
    "conv1d, kept": (lambda: nn.Conv1d(8, 8, 3, padding=1), (8, 3), ball, True),
    "conv1d, large": (lambda: nn.Conv1d(8, 8, 3, padding=1), (8, 2), ball, False),
    "conv2d, kept": (lambda: nn.Conv2d(4, 4, 3, padding=1), (4, 4, 2), ball, True),
    "conv2d, large": (lambda: nn.Conv2d(4, 8, 5, padding=2, groups=2), (4, 2, 2), ball, False),
    "linear, kept": (lambda: nn.Linear(24, 24), (12, 24), of_coordinates, True),
    "linear, large": (lambda: nn.Linear(24, 24), (11, 24), of_coordinates, False),
}


@pytest.mark.parametrize("case", KEPT_CASES)
def test_large_gradients_are_not_kept(case: str) -> None:
    torch.set_default_dtype(torch.float64)
    make, shape, geometry, kept = KEPT_CASES[case]
    model, batch = make(), (torch.randn(N, *shape), 0.5 + torch.rand(N))
    expected, asked, weights = one_by_one(model, batch), geometry(model), some_weights(N)
    built = Bookkeeping(model, loss, batch)
    close(built.norms(asked), whitened_norms(expected, asked))

    assert built._direct is not None
    (record,) = built._direct[model.weight]
    held = batch[0].numel() + model(batch[0]).numel()
    most = (Outer if isinstance(model, nn.Linear) else Convolution).most_kept
    assert (N * model.weight.numel() <= most * held) == kept
    assert isinstance(record, Dense if kept else Convolution | Outer)

    sums = built.weighted_sum(weights)
    for p, total in summed(expected, weights).items():
        close(sums[p], total)
    close(built.norms(ball(model)), whitened_norms(expected, ball(model)))
