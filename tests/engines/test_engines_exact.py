"""Norms and weighted sums of every engine equal those of plain autograd, one example at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from adamas import UnsupportedError, clipped_sum
from adamas.engines import ENGINES, Vmap, trainable_parameters
from tests.support.drawn_models import KINDS, cases
from tests.support.every_engine import assert_close, assert_sums, data, every_engine, mlp
from tests.support.one_by_one import ball, loss, one_by_one, whitened_norms
from tests.support.through import Through


@every_engine
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=12)
@given(drawn=st.data())
def test_norms_and_weighted_sum_are_those_of_one_example_at_a_time(engine, kind, drawn):
    case = drawn.draw(cases(kind))
    built = ENGINES[engine](case.model, loss, case.batch)
    gradients = one_by_one(case.model, case.batch)
    assert_close(built.norms(case.geometry), whitened_norms(gradients, case.geometry))
    if gradients:
        assert_sums(built, case.weights, gradients)
    else:
        sums = built.weighted_sum(case.weights)
        assert set(sums) == set(trainable_parameters(case.model).values())
        for p, total in sums.items():
            assert_close(total, torch.zeros_like(p))


@every_engine
def test_one_engine_answers_for_several_geometries_and_weights(engine):
    model, batch = mlp(), data(4)
    gradients = one_by_one(model, batch)
    built = ENGINES[engine](model, loss, batch)
    for radius in (1.0, 0.25):
        assert_close(built.norms(ball(model, radius)), whitened_norms(gradients, ball(model, radius)))
    for weights in (torch.ones(4), torch.tensor([0.0, 1.0, 0.5, 0.0])):
        assert_sums(built, weights, gradients)


@every_engine
def test_weights_of_zero_give_a_sum_of_zero(engine):
    model, batch = mlp(), data(3)
    built = ENGINES[engine](model, loss, batch)
    built.norms(ball(model))
    assert not any(total.any() for total in built.weighted_sum(torch.zeros(3).double()).values())


@every_engine
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_models_are_summed_in_float32(engine, dtype):
    model, (x, factor) = mlp(), data(4)
    exact = one_by_one(model, (x, factor))
    order = list(model.parameters())
    low = mlp().to(dtype)
    built = ENGINES[engine](low, loss, (x.to(dtype), factor.to(dtype)))
    norms = built.norms(ball(low))
    sums = built.weighted_sum(torch.ones(4).double())
    assert norms.dtype == torch.float64
    expected = whitened_norms(exact, ball(model))
    tolerance = 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(norms, expected, rtol=tolerance, atol=tolerance)
    for p, q in zip(order, low.parameters(), strict=True):
        assert sums[q].dtype == torch.float32
        total = sum(g[p] for g in exact).float()
        torch.testing.assert_close(sums[q], total, rtol=tolerance, atol=tolerance * float(total.abs().max()))


# vmap refuses these layers.
RECURRENT = {
    "GRU": lambda: Through(lambda m, x: m.layer(x)[0], layer=nn.GRU(3, 2, batch_first=True)),
    "GRUCell": lambda: Through(lambda m, x: m.layer(x[:, 0]), layer=nn.GRUCell(3, 2)),
    "LSTMCell": lambda: Through(lambda m, x: m.layer(x[:, 0])[0], layer=nn.LSTMCell(3, 2)),
    "RNN": lambda: Through(lambda m, x: m.layer(x)[0], layer=nn.RNN(3, 2, batch_first=True)),
}


@every_engine
@pytest.mark.parametrize("layer", RECURRENT)
def test_recurrent_layers_are_exact_or_refused(engine, layer):
    torch.manual_seed(0)
    model = RECURRENT[layer]().double()
    batch = (torch.randn(3, 4, 3).double(), torch.ones(3).double())
    try:
        norms = ENGINES[engine](model, loss, batch).norms(ball(model))
    except UnsupportedError:
        return
    assert_close(norms, whitened_norms(one_by_one(model, batch), ball(model)))


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("cache_bytes", [0, 1000, 1 << 30])
def test_chunk_size_and_cache_do_not_change_vmap(chunk_size, cache_bytes):
    class Cached(Vmap):
        pass

    Cached.cache_bytes = cache_bytes
    model, batch = mlp(), data(7)
    gradients = one_by_one(model, batch)
    built = Cached(model, loss, batch, chunk_size=chunk_size)
    weights = torch.tensor([1.0, 0.0, 0.0, 0.3, 0.0, 2.0, 1.0]).double()
    norms = built.norms(ball(model))
    assert_close(norms, whitened_norms(gradients, ball(model)))
    assert_sums(built, weights, gradients)


@every_engine
def test_norms_are_exact_under_no_grad(engine):
    model, batch = mlp(), data(2)
    gradients = one_by_one(model, batch)
    with torch.no_grad():
        norms = ENGINES[engine](model, loss, batch).norms(ball(model))
    assert_close(norms, whitened_norms(gradients, ball(model)))


@every_engine
def test_norms_and_sums_require_no_gradient(engine):
    model, batch = mlp(), data(2)
    built = ENGINES[engine](model, loss, batch)
    assert not built.norms(ball(model)).requires_grad
    assert not any(total.requires_grad for total in built.weighted_sum(torch.ones(2).double()).values())


# --- examples whose gradient is not finite ------------------------------------------------------------


@every_engine
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["input", "loss"])
def test_a_non_finite_example_has_a_non_finite_norm_and_leaves_the_others_exact(engine, bad, where):
    model, (x, factor) = mlp(), data(4)
    gradients = one_by_one(model, (x, factor))
    if where == "input":
        x[1, 0] = bad
    else:
        factor[1] = bad
    built = ENGINES[engine](model, loss, (x, factor))
    norms = built.norms(ball(model))
    assert not norms[1].isfinite()
    kept = [0, 2, 3]
    assert_close(norms[kept], whitened_norms([gradients[i] for i in kept], ball(model)))
    weights = torch.tensor([1.0, 0.0, 0.5, 2.0]).double()
    assert_sums(built, weights, gradients)
    # `clipped_sum` gives the example a weight of 0 on its own.
    total = clipped_sum(ENGINES[engine](model, loss, (x, factor)), ball(model))
    assert all(value.isfinite().all() for value in total.values())


@every_engine
def test_a_non_finite_example_leaves_embeddings_and_convolutions_of_the_others_exact(engine):
    torch.manual_seed(0)
    model = Through(
        lambda m, x: m.conv(m.words(x).transpose(1, 2)).tanh(),
        words=nn.Embedding(5, 3),
        conv=nn.Conv1d(3, 2, 2),
    ).double()
    tokens, factor = torch.randint(5, (3, 4)), torch.tensor([1.0, float("nan"), 2.0]).double()
    built = ENGINES[engine](model, loss, (tokens, factor))
    norms = built.norms(ball(model))
    assert norms.isfinite().tolist() == [True, False, True]
    gradients = one_by_one(model, (tokens, factor))
    weights = torch.tensor([1.0, 0.0, 1.0]).double()
    assert_sums(built, weights, gradients)
