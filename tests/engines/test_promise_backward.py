"""One record moves the sum by at most 1: a backward may neither mix gradients nor train other leaves."""

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from adamas import Geometry, UnsupportedError
from adamas.engines import ENGINES, Bookkeeping, Loop
from adamas.errors import SlowEngineWarning
from tests.support.promised_runs import Forward, N, cross_entropy, data, layers, made
from tests.support.through import Through

# --- backwards that mix -------------------------------------------------------------------------------


class Shared(torch.autograd.Function):
    """An identity whose backward divides by a norm over the batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, e: Tensor) -> Tensor:
        return e / e.norm()


def hooked(m: Any, x: Tensor) -> Tensor:
    h = m.first(x)
    h.register_hook(lambda g: g / g.norm())
    return m.second(h.tanh())


def node_hooked(m: Any, x: Tensor) -> Tensor:
    h = m.first(x).tanh()
    h.grad_fn.register_prehook(lambda gradients: tuple(g / g.norm() for g in gradients))
    return m.second(h)


def custom(function: Any) -> Forward:
    return lambda m, x: m.second(function.apply(m.first(x)))


def checkpointed(function: Any) -> Forward:
    return lambda m, x: m.second(checkpoint(lambda h: function.apply(m.first(h)), x, use_reentrant=False))


BACKWARDS: dict[str, Forward] = {
    "a hook of a tensor": hooked,
    "a hook of a node": node_hooked,
    "a custom function": custom(Shared),
    "a custom function in a checkpoint": checkpointed(Shared),
}


@pytest.mark.parametrize("name", BACKWARDS)
def test_a_backward_that_mixes_gradients_is_refused(name):
    with pytest.raises(UnsupportedError):
        made(Through(BACKWARDS[name], **layers()), data(5))


def test_a_full_backward_hook_of_a_module_is_refused():
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    model[1].register_full_backward_hook(lambda module, inner, outer: (inner[0] / inner[0].norm(),))
    with pytest.raises(UnsupportedError):
        made(model, data(5))


def test_a_captured_apply_is_refused():
    apply = Shared.apply  # taken before the engine can replace it
    with pytest.raises(UnsupportedError, match="Shared"):
        made(Through(lambda m, x: m.second(apply(m.first(x))), **layers()), data(5))


def test_auto_warns_once_why_it_does_not_take_the_fast_engine():
    with pytest.warns(SlowEngineWarning, match=r"takes 'vmap'.*Shared|takes 'loop'.*Shared") as seen:
        run = made(Through(custom(Shared), **layers()), data(5), engine="auto")
    assert len(seen) == 1
    assert run.engine != "bookkeeping"
    assert "Shared" in (run.explain().refusal or "")


# --- backwards that keep examples apart ---------------------------------------------------------------


class Doubled(torch.autograd.Function):
    """A function whose backward keeps examples apart."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 2 * x.tanh()

    @staticmethod
    def backward(ctx: Any, e: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * e * (1 - x.tanh().square())


def test_a_custom_function_whose_backward_keeps_examples_apart_is_exact():
    model = Through(custom(Doubled), **layers()).double()
    batch = tuple(t.double() if t.is_floating_point() else t for t in data(5).tensors)
    ball = Geometry.ball(model.parameters())
    fast, slow = (engine(model, cross_entropy, batch).norms(ball) for engine in (Bookkeeping, Loop))
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=0)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_checkpoints_are_exact_on_every_engine(engine, reentrant):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()

    def loss(model: Any, batch: Any) -> Tensor:
        out = checkpoint(model[1:], model[0](batch[0]), use_reentrant=reentrant)
        return F.cross_entropy(out, batch[1], reduction="none")

    batch = tuple(t.double() if t.is_floating_point() else t for t in data(5).tensors)
    ball = Geometry.ball(plain.parameters())
    found = ENGINES[engine](plain, loss, batch)
    expected = Loop(plain, cross_entropy, batch)
    try:
        norms = found.norms(ball)
    except UnsupportedError as error:
        if engine == "vmap" and not reentrant and "saved tensor hooks" in str(error):
            pytest.skip("torch.func of this version takes no hooks on saved tensors")
        raise
    torch.testing.assert_close(norms, expected.norms(ball), rtol=1e-12, atol=0)
    weights = torch.linspace(0, 1, N, dtype=torch.float64)
    for p, total in found.weighted_sum(weights).items():
        torch.testing.assert_close(total, expected.weighted_sum(weights)[p], rtol=1e-10, atol=1e-12)
        assert p.grad is None


# --- leaves that are not parameters of the model ------------------------------------------------------


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_a_parameter_of_the_loss_is_refused_and_gets_no_gradient(engine):
    margin = nn.Parameter(torch.ones(3))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]) * margin, batch[1], reduction="none")

    with pytest.raises(UnsupportedError, match="not a trainable parameter of the model"):
        made(nn.Linear(5, 3), data(5), loss, engine=engine)
    assert margin.grad is None


@pytest.mark.parametrize("engine", ENGINES)
def test_another_leaf_of_the_loss_gets_no_gradient(engine):
    scale = torch.ones(3, requires_grad=True)
    model, batch = nn.Linear(5, 3), data(5).tensors

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]) * scale, batch[1], reduction="none")

    with contextlib.suppress(UnsupportedError):
        ENGINES[engine](model, loss, batch).norms(Geometry.ball(model.parameters()))
    assert scale.grad is None
