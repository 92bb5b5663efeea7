"""A step frees its memory without the garbage collector, and keeps no large gradients."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch._dynamo  # the first forward would import it, and the import would keep the forward's frames
from torch import Tensor, nn

from adamas import Geometry
from adamas.engines import Bookkeeping
from adamas.engines.bookkeeping.convolution import Convolution
from adamas.engines.bookkeeping.outer import Outer
from adamas.engines.bookkeeping.records import Dense
from adamas.noise import GaussianNoise
from tests.support.every_engine import assert_sums
from tests.support.one_by_one import (
    Batch,
    ball,
    close,
    loss,
    one_by_one,
    some_weights,
    whitened_norms,
)
from tests.support.step_models import GEOMETRIES, MODELS, N, per_coordinate, release

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")


# --- freed memory --------------------------------------------------------------------------------------


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
    """Returns weak references to the engine, its records, and the tensors of the records."""
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
            built = Bookkeeping(model, watched, batch)  # the first one also probes the model
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
def test_steps_do_not_accumulate_tensors(make: Callable[[], tuple[nn.Module, Tensor]]) -> None:
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


# --- gradients kept for the sum -----------------------------------------------------------------------


def scale_per_coordinate(model: nn.Module) -> Geometry:
    return Geometry(None, per_coordinate(model).scale)


KEPT_CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Callable[..., Geometry], bool]] = {
    "conv1d, kept": (lambda: nn.Conv1d(8, 8, 3, padding=1), (8, 3), ball, True),
    "conv1d, large": (lambda: nn.Conv1d(8, 8, 3, padding=1), (8, 2), ball, False),
    "conv2d, kept": (lambda: nn.Conv2d(4, 4, 3, padding=1), (4, 4, 2), ball, True),
    "conv2d, large": (lambda: nn.Conv2d(4, 8, 5, padding=2, groups=2), (4, 2, 2), ball, False),
    "linear, kept": (lambda: nn.Linear(24, 24), (12, 24), scale_per_coordinate, True),
    "linear, large": (lambda: nn.Linear(24, 24), (11, 24), scale_per_coordinate, False),
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

    assert_sums(built, weights, expected)
    close(built.norms(ball(model)), whitened_norms(expected, ball(model)))
