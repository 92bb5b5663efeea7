"""Every engine uses the same dropout masks for norms and sums, and leaves the global generator alone."""

import pytest
import torch
from torch import nn

from adamas.engines import ENGINES
from adamas.engines.base import Materialized
from tests.support.every_engine import assert_close, data, every_engine, mlp, norms_of_single_examples
from tests.support.one_by_one import ball, loss


def dropout_model() -> nn.Module:
    torch.manual_seed(3)
    layers = [
        nn.Linear(3, 16),
        nn.Dropout(0.5),
        nn.Tanh(),
        nn.Linear(16, 8),
        nn.Dropout(0.5),
        nn.Linear(8, 2),
    ]
    return nn.Sequential(*layers).double()


HOLDS_GRADIENTS = [
    name for name, engine in ENGINES.items() if isinstance(engine, type) and issubclass(engine, Materialized)
]


@every_engine
def test_weighted_sums_use_the_dropout_masks_of_the_norms(engine):
    model, batch = dropout_model(), data(5)
    built = ENGINES[engine](model, loss, batch)
    norms = built.norms(ball(model))
    torch.rand(7)  # the user's generator moves on
    assert_close(norms_of_single_examples(built, 5), norms)
    assert_close(built.norms(ball(model)), norms)


@pytest.mark.parametrize("engine", HOLDS_GRADIENTS)
@pytest.mark.parametrize("cache_bytes", [0, 1500])  # keeps no gradient, or that of about one example
def test_recomputed_gradients_use_the_same_dropout_masks(engine, cache_bytes):
    class Small(ENGINES[engine]):
        pass

    Small.cache_bytes = cache_bytes
    model, batch = dropout_model(), data(5)
    built = Small(model, loss, batch)
    norms = built.norms(ball(model))
    torch.rand(7)
    assert_close(norms_of_single_examples(built, 5), norms)
    assert norms.unique().numel() == 5


@pytest.mark.parametrize("engine", HOLDS_GRADIENTS)
def test_recomputing_gradients_leaves_the_global_generator_where_it_was(engine):
    class Small(ENGINES[engine]):
        cache_bytes = 0

    model, batch = dropout_model(), data(3)
    built = Small(model, loss, batch)
    built.norms(ball(model))
    torch.rand(7)  # the user's generator moves on
    state = torch.get_rng_state()
    built.weighted_sum(torch.ones(3).double())
    assert torch.equal(torch.get_rng_state(), state)


@every_engine
def test_masks_differ_between_examples_and_between_engines_of_one_batch(engine):
    model = dropout_model()
    x, factor = data(1)
    batch = (x.expand(6, -1).clone(), factor.expand(6).clone())
    first = ENGINES[engine](model, loss, batch).norms(ball(model))
    second = ENGINES[engine](model, loss, batch).norms(ball(model))
    assert first.unique().numel() > 1
    assert not torch.equal(first, second)


@every_engine
def test_a_model_without_randomness_does_not_touch_the_global_generator(engine):
    model, batch = mlp(), data(3)
    state = torch.get_rng_state()
    built = ENGINES[engine](model, loss, batch)
    built.norms(ball(model))
    built.weighted_sum(torch.ones(3).double())
    assert torch.equal(torch.get_rng_state(), state)
