"""The fast engine leaves no trace on the model, on a batch or in torch's global state."""

import copy
import warnings

import pytest
import torch

from adamas import UnsupportedError
from adamas.engines import Bookkeeping
from tests.support.fast_engine import torch_warnings
from tests.support.models_by_hand import CASES, B, made, mlp, rows
from tests.support.one_by_one import assert_exact, geometries, loss, norms, some_weights
from tests.support.traces import traces

pytestmark = torch_warnings

UNTOUCHED = [
    "ViT",
    "weight_norm",
    "orthogonal",
    "LSTM, 2 layers, bidirectional",
    "checkpoint",
    "tied embedding and head",
    "encoder layer, training=True, norm_first=False",
    "batch_norm with fixed statistics",
    "biases only",
]


@pytest.mark.parametrize("name", UNTOUCHED)
@pytest.mark.parametrize("gradients", [False, True], ids=["no gradients", "gradients"])
def test_the_model_is_left_untouched_and_still_trains(name, gradients):
    model, batch = made(CASES[name])
    fresh = copy.deepcopy(model)
    marks = [torch.full_like(p, 7.0) if gradients and p.requires_grad else None for p in model.parameters()]
    for p, mark in zip(model.parameters(), marks, strict=True):
        p.grad = mark
    before = traces(model)
    built = Bookkeeping(model, loss, batch)
    for geometry in geometries(model):
        built.norms(geometry)
    built.weighted_sum(some_weights(B))
    assert traces(model) == before
    for p, q, mark in zip(model.parameters(), fresh.parameters(), marks, strict=True):
        assert torch.equal(p, q)
        assert p.grad is mark
        assert mark is None or bool((mark == 7).all())
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), fresh.buffers(), strict=True))

    model.zero_grad()
    for each in (model, fresh):
        loss(each, batch).sum().backward()
    for p, q in zip(model.parameters(), fresh.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        assert p.grad is None or torch.equal(p.grad, q.grad)


def test_a_refusal_leaves_gradients_and_the_generator_as_they_were():
    model, (x, factor) = mlp(), rows(5)
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    state = torch.get_rng_state()
    with pytest.raises(UnsupportedError):
        norms(model, (x, factor), lambda model, batch: loss(model, batch) - loss(model, batch).mean())
    assert all(bool((p.grad == 7).all()) for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.overrides._get_current_function_mode_stack()


def test_a_batch_that_requires_a_gradient_gets_none():
    model, (x, factor) = mlp(), rows(5)
    x.requires_grad_()
    norms(model, (x, factor))
    assert x.grad is None


def test_the_engine_emits_no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("mlp", "conv2d stride", "LSTM", "attention batch-first", "weight_norm", "checkpoint"):
            assert_exact(*made(CASES[name]))
