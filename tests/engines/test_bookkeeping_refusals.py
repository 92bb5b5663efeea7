"""The fast engine refuses what mixes examples or what it cannot follow, with the reason and a remedy."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from adamas import UnsupportedError
from tests.support.fast_engine import refused, torch_warnings
from tests.support.models_by_hand import B, Through, made, mlp, param, recurrent, rows, tokens
from tests.support.one_by_one import Batch, assert_exact, norms

pytestmark = torch_warnings


# --- examples that mix --------------------------------------------------------------------------------


MIXING: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "mean without gradient": lambda m, x: m.o(m.l(x * x.detach().mean(0).abs()).tanh()),
    "hidden mean without gradient": lambda m, x: m.o(m.l(x) * m.l(x).detach().mean(0).abs()),
    "mean": lambda m, x: m.o(m.l(x).tanh() - m.l(x).tanh().mean(0)),
    "the first example": lambda m, x: m.o(m.l(x - x[:1].detach()).tanh()),
    "neighbours": lambda m, x: m.o(m.l(x + x.roll(1, 0)).tanh()),
    "the batch's length": lambda m, x: m.o(m.l(x).tanh() / len(x)),
    "in-batch negatives": lambda m, x: (m.l(x) @ m.l(x).t()).logsumexp(1, keepdim=True),
}


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("n", [2, 5])
def test_statistics_over_the_batch_are_refused(name, n):
    torch.manual_seed(0)
    model = Through(MIXING[name], l=nn.Linear(7, 9), o=nn.Linear(9, 3)).double()
    with pytest.raises(UnsupportedError, match="mix"):
        norms(model, rows(n))


def test_statistics_that_only_training_mode_uses_are_refused():
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.l(x)
        return m.o(h * h.detach().mean(0).abs() if m.training else h)

    torch.manual_seed(0)
    model = Through(forward, l=nn.Linear(7, 9), o=nn.Linear(9, 3)).double()
    with pytest.raises(UnsupportedError, match="mix"):
        norms(model, rows(5))


def test_a_second_loss_that_mixes_is_refused():
    model, batch = mlp(), rows(5)
    norms(model, batch)

    def mixing(model: nn.Module, batch: Batch) -> Tensor:
        out = model(batch[0])
        return (out - out.mean(0)).square().sum(1)

    with pytest.raises(UnsupportedError, match="mix"):
        norms(model, batch, mixing)


@pytest.mark.parametrize("n", [2, 3, 5, 9])
def test_a_weight_computed_from_the_batch_is_refused(n):
    model = Through(
        lambda m, x: F.linear(x, m.h(x.mean(0)).view(9, 7), m.b).tanh(), h=nn.Linear(7, 63), b=param(9)
    ).double()
    with pytest.raises(UnsupportedError, match="mix"):
        norms(model, rows(n))


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("option", [{"max_norm": 0.5}, {"scale_grad_by_freq": True}], ids=str)
def test_embeddings_that_depend_on_the_batch_are_refused(kind, option, n):
    torch.manual_seed(0)
    model = nn.Sequential(kind(20, 8, **option), nn.Tanh(), nn.Linear(8, 3)).double()
    refused(model, (tokens(n), torch.ones(n).double()), "0.weight", *option, "without")


def test_a_frozen_embedding_with_max_norm_is_refused():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 8, max_norm=0.5), nn.Tanh(), nn.Linear(8, 3)).double()
    model[0].weight.requires_grad_(False)
    refused(model, (tokens(), torch.ones(B).double()), "max_norm")


# --- buffers that change ------------------------------------------------------------------------------


after_evaluation = pytest.mark.parametrize("evaluated", [False, True], ids=["new", "after evaluation"])


@after_evaluation
@pytest.mark.parametrize("n", [1, 5])
def test_spectral_norm_in_training_is_refused_and_its_buffers_are_restored(n, evaluated):
    torch.manual_seed(0)
    model = nn.Sequential(spectral_norm(nn.Linear(7, 9)), nn.Tanh(), nn.Linear(9, 3)).double()
    if evaluated:
        assert_exact(model.eval(), rows(5))
    assert re.search("_u|_v", refused(model.train(), rows(n)))


@after_evaluation
@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_in_training_is_refused_and_its_buffers_are_restored(n, affine, evaluated):
    torch.manual_seed(0)
    layers = [nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3, affine=affine), nn.Flatten()]
    model = nn.Sequential(*layers).double()
    if evaluated:
        assert_exact(model.eval(), rows(5, 2, 5))
    refused(model.train(), rows(n, 2, 5), "eval()")


def test_batch_norm_in_training_is_refused_by_name():
    torch.manual_seed(0)
    layers = [nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.Flatten()]
    refused(nn.Sequential(*layers).double(), rows(5, 2, 5), "1.weight", "GroupNorm")


# --- values that are read -----------------------------------------------------------------------------


READS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "item": lambda m, x: m.l(x) * (1 + abs(x.sum().item())),
    "if": lambda m, x: m.l(x) if x.sum() > 0 else 2 * m.l(x),
    "if on hidden values": lambda m, x: m.l(x) if m.l(x).sum() > 0 else 2 * m.l(x),
    "float": lambda m, x: m.l(x) * float(x.max()),
    "tolist": lambda m, x: m.l(x) * x.tolist()[0][0],
    "equal": lambda m, x: m.l(x) * (1 if torch.equal(x, x.abs()) else 2),
    "allclose": lambda m, x: m.l(x) * (1 if torch.allclose(x, x.abs()) else 2),
    "is_nonzero": lambda m, x: m.l(x) * (1 if (x.sum() > 0).is_nonzero() else 2),
}


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("name", READS)
def test_reading_values_of_the_batch_is_refused(name, n):
    torch.manual_seed(0)
    model = Through(READS[name], l=nn.Linear(7, 3)).double()
    refused(model, rows(n), "engine='loop'")


def test_a_branch_is_refused_even_if_the_probed_examples_agree():
    # The first three examples, which the probe uses, take the same branch alone and together.
    torch.manual_seed(0)
    model = Through(READS["if"], l=nn.Linear(7, 3)).double()
    x, factor = rows(5)
    x[:3] = x[:3].abs()
    refused(model, (x, factor), "engine='loop'")


# --- computations that are not followed ---------------------------------------------------------------


def test_dropout_between_fused_layers_is_refused_except_in_evaluation():
    model, batch = made(recurrent(nn.LSTM, num_layers=2, dropout=0.2))
    refused(model, batch, "r.weight_ih_l0", "nn.Dropout")
    model.eval()
    assert_exact(model, batch)


@pytest.mark.parametrize("trains", [False, True])
def test_a_weight_from_outside_the_model_is_a_constant_or_refused(trains):
    torch.manual_seed(0)
    foreign = torch.randn(4, 9, dtype=torch.float64, requires_grad=trains)
    model, batch = made(
        lambda: (
            Through(lambda m, x: F.linear(m.l(x).tanh(), foreign, m.b), l=nn.Linear(7, 9), b=param(4)),
            torch.randn(B, 7),
        )
    )
    if trains:
        refused(model, batch, "not a trainable parameter of the model", "requires_grad_(False)")
        assert foreign.grad is None
    else:
        assert_exact(model, batch)


def test_a_custom_function_of_a_parameter_is_refused_by_name():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w * 2

        @staticmethod
        def backward(ctx: Any, e: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return 2 * e * w, (2 * e * x).sum(0)

    torch.manual_seed(0)
    model = Through(lambda m, x: Twice.apply(m.l(x), m.w), l=nn.Linear(7, 3), w=param(3)).double()
    refused(model, rows(5), "Twice", "engine='loop'")
