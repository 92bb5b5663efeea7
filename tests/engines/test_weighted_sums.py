"""Every engine writes its weighted sum into given tensors, or adds to them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from adamas.engines import Bookkeeping, Loop, Stacked, Vmap, trainable_parameters
from tests.support.one_by_one import Batch, ball, close, loss, one_by_one, some_weights, summed
from tests.support.step_models import MODELS, N, per_coordinate

NAN = float("nan")
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")


class WithSpare(nn.Module):
    """A model with a parameter that no example uses."""

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


def double_case(n: int = N) -> tuple[WithSpare, Batch]:
    torch.set_default_dtype(torch.float64)
    return WithSpare(), (torch.randn(n, 4), 0.5 + torch.rand(n))


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
def test_every_kind_of_record_overwrites_or_adds(make: Callable[[], tuple[nn.Module, Tensor]]) -> None:
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
def test_examples_of_weight_0_do_not_contribute(engine: str, lost: list[int]) -> None:
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
