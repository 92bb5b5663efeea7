"""Functions without a formula for norms: exact in chunks of examples, and without gradients for the sum."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from adamas.engines import Bookkeeping
from adamas.engines.bookkeeping import records as records_module
from adamas.engines.bookkeeping.general import General
from adamas.errors import UnsupportedError
from tests.support.every_engine import assert_sums
from tests.support.models_by_hand import B, Through, made, param
from tests.support.one_by_one import (
    assert_exact,
    ball,
    close,
    geometries,
    loss,
    one_by_one,
    some_weights,
    summed,
    whitened_norms,
)

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")

Build = Callable[[], tuple[nn.Module, Tensor]]

CASES: dict[str, Build] = {
    "transposed conv2d": lambda: (
        Through(
            lambda m, x: m.o(m.c(x).tanh().flatten(1)), c=nn.ConvTranspose2d(3, 2, 3), o=nn.Linear(72, 3)
        ),
        torch.randn(B, 3, 4, 4),
    ),
    "bilinear": lambda: (
        Through(lambda m, x: m.b(x[:, :3], x[:, 3:]), b=nn.Bilinear(3, 4, 5)),
        torch.randn(B, 7),
    ),
    "einsum": lambda: (
        Through(lambda m, x: torch.einsum("nti,ijk->nk", x.tanh(), m.w), w=param(4, 5, 3)),
        torch.randn(B, 6, 4),
    ),
    "einsum, used twice": lambda: (
        Through(
            lambda m, x: torch.einsum("ni,ij->nj", torch.einsum("ni,ij->nj", x, m.w).tanh(), m.w),
            w=param(4, 4),
        ),
        torch.randn(B, 4),
    ),
    "einsum and linear": lambda: (
        Through(lambda m, x: F.linear(torch.einsum("ni,ij->nj", x, m.w).tanh(), m.w), w=param(4, 4)),
        torch.randn(B, 4),
    ),
}


def generals(engine: Bookkeeping) -> list[General]:
    assert engine._direct is not None
    return [r for each in engine._direct.values() for r in each if isinstance(r, General)]


@pytest.fixture
def lengths(monkeypatch):
    """Records how many gradients are computed at a time."""
    seen = []
    real = General.materialize

    def spied(self, rows):
        gradients = real(self, rows)
        seen.append(len(gradients))
        return gradients

    monkeypatch.setattr(General, "materialize", spied)
    return seen


@pytest.mark.parametrize("name", CASES)
def test_exact_in_chunks_of_two_examples(name, lengths, monkeypatch):
    model, batch = made(CASES[name])
    size = next(model.parameters()).numel()
    monkeypatch.setattr(records_module, "CHUNK", 2 * size // torch.get_num_threads() + 1)
    assert_exact(model, batch)
    assert lengths
    lengths.clear()
    engine = Bookkeeping(model, loss, batch)
    for geometry in geometries(model):
        engine.norms(geometry)
    assert generals(engine)
    assert min(lengths) < B
    lengths.clear()
    engine.weighted_sum(some_weights(B))
    assert lengths == []  # the sum takes one product for all examples


def test_a_large_weight_is_not_copied_for_all_examples(lengths):
    model = nn.Sequential(nn.ConvTranspose2d(512, 256, 2), nn.Flatten())
    batch = (torch.randn(6, 512, 1, 1), torch.rand(6))
    Bookkeeping(model, loss, batch).norms(ball(model))  # probes the model
    lengths.clear()
    engine = Bookkeeping(model, loss, batch)
    engine.norms(ball(model))
    # On one thread, the weight takes 6 chunks and the bias one.
    of_weight = lengths[:-1] if lengths[-1] == 6 else lengths[1:]
    assert max(of_weight) <= torch.get_num_threads()
    assert sum(lengths) == 12


@pytest.mark.parametrize("name", ["transposed conv2d", "einsum and linear"])
def test_an_example_that_is_not_finite_does_not_spoil_the_others(name):
    model, (x, factor) = made(CASES[name])
    x[2] = float("nan")
    engine = Bookkeeping(model, loss, (x, factor))
    norms = engine.norms(ball(model))
    assert not norms[2].isfinite()
    weights = some_weights(B)
    weights[2] = 0
    good = torch.arange(B) != 2
    gradients = one_by_one(model, (x[good], factor[good]), loss)
    close(norms[good], whitened_norms(gradients, ball(model)))
    sums = engine.weighted_sum(weights)
    for p, total in summed(gradients, weights[good]).items():
        close(sums[p], total)


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
@pytest.mark.parametrize("name", ["transposed conv2d", "bilinear"])
def test_exact_under_checkpointing(name, reentrant):
    plain, (x, factor) = made(CASES[name])
    forward = plain._forward
    gradients = one_by_one(plain, (x, factor), loss)
    # A reentrant checkpoint has no gradient unless its input requires one.
    plain._forward = lambda m, x: checkpoint(forward, m, x.detach().requires_grad_(), use_reentrant=reentrant)
    engine = Bookkeeping(plain, loss, (x, factor))
    close(engine.norms(ball(plain)), whitened_norms(gradients, ball(plain)))
    assert_sums(engine, some_weights(B), gradients)


@pytest.mark.parametrize("name", ["einsum", "bilinear"])
def test_norms_and_sums_under_autocast_are_exact_to_bfloat16(name):
    model, (x, factor) = made(CASES[name])
    model, batch = model.float(), (x.float(), factor.float())

    def narrow(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss(model, batch).float()

    gradients = one_by_one(model, batch, narrow)
    engine = Bookkeeping(model, narrow, batch)
    ratio = engine.norms(ball(model)) / whitened_norms(gradients, ball(model))
    assert float((ratio - 1).abs().max()) < 0.03
    sums = engine.weighted_sum(some_weights(B))
    for p, total in summed(gradients, some_weights(B)).items():
        assert sums[p].dtype == torch.float32
        assert float((sums[p] - total).norm() / total.norm()) < 0.05


@pytest.mark.parametrize("narrow", ["autocast", "parameters"])
def test_one_example_moves_a_large_sum_of_16_bits_by_at_most_1(narrow):
    """All gradients point the same way; a sum rounded to bfloat16 would move by 1.28."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if narrow == "parameters" else torch.float32
    w = nn.Parameter((0.1 * torch.randn(32, 64)).to(dtype))
    model = Through(lambda m, x: torch.einsum("ni,oi->no", x, m.w), w=w)
    x = (torch.randn(1, 64) + 0.02 * torch.randn(257, 64)).to(dtype)
    target = 10 * torch.randn(1, 32)

    def squared(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow == "autocast"):
            out = model(batch[0])
        return (out.float() - target).square().sum(1)

    def clipped(x: Tensor) -> Tensor:
        engine = Bookkeeping(model, squared, (x,))
        weights = 1 / engine.norms(ball(model)).clamp(min=1)
        assert weights.max() < 1
        assert generals(engine)
        return engine.weighted_sum(weights)[w].double()

    whole = clipped(x)
    assert whole.norm() > 250
    assert 0.99 < float((whole - clipped(x[:-1])).norm()) <= 1 + 1e-4


@pytest.mark.parametrize("cast", [lambda x, w: x.type_as(w), lambda x, w: x.to(w)], ids=["type_as", "to"])
def test_a_call_that_only_reads_the_dtype_of_a_weight_does_not_use_it(cast):
    def build() -> tuple[nn.Module, Tensor]:
        return Through(lambda m, x: m.l(cast(x, m.l.weight)), l=nn.Linear(4, 3)), torch.randn(B, 4)

    assert_exact(*made(build))


def test_a_weight_whose_gradient_is_first_zero_is_exact_later():
    model = Through(
        lambda m, x: torch.einsum("ni,ij->nj", m.f(x), m.w), f=nn.Linear(4, 5), w=param(5, 3)
    ).double()
    with torch.no_grad():
        model.f.weight.zero_()
        model.f.bias.zero_()
    x, factor = torch.randn(B, 4).double(), torch.rand(B).double()
    assert_exact(model, (x, factor))
    with torch.no_grad():
        model.f.weight.normal_()
    assert_exact(model, (x, factor))


def test_a_function_that_mixes_examples_is_refused_by_name():
    model = Through(lambda m, x: torch.einsum("ni,mi,ij->nj", x, x, m.w), w=param(4, 3)).double()
    with pytest.raises(UnsupportedError, match=r"'w'|mixes"):
        Bookkeeping(model, loss, (torch.randn(B, 4).double(), torch.rand(B).double())).norms(ball(model))


# --- losses that call backward ------------------------------------------------------------------------


def by_tensor(losses: Tensor) -> None:
    losses.sum().backward(retain_graph=True)


def by_function(losses: Tensor) -> None:
    torch.autograd.backward(losses.sum(), retain_graph=True)


@pytest.mark.parametrize("backward", [by_tensor, by_function], ids=lambda f: f.__name__)
@pytest.mark.parametrize("earlier", [True, False], ids=["a gradient before", "no gradient before"])
def test_a_loss_that_calls_backward_is_refused(backward, earlier):
    model = nn.Linear(4, 3)
    before = torch.ones(3, 4) if earlier else None
    model.weight.grad = before

    def differentiating(model: nn.Module, batch: Any) -> Tensor:
        losses = loss(model, batch)
        backward(losses)
        return losses

    with pytest.raises(UnsupportedError, match=r"\.backward\(\)"):
        Bookkeeping(model, differentiating, (torch.randn(5, 4), torch.rand(5))).norms(ball(model))
    assert model.weight.grad is before
    assert before is None or torch.equal(before, torch.ones(3, 4))
    assert model.bias.grad is None
