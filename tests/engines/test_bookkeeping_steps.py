"""The fast engine stays exact from step to step, while batches, losses, modes and models change."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adamas.engines import Bookkeeping
from tests.support.every_engine import assert_sums, norms_of_single_examples
from tests.support.fast_engine import torch_warnings
from tests.support.models_by_hand import CASES, B, Through, frozen, made, mlp, rows
from tests.support.one_by_one import (
    Batch,
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

pytestmark = torch_warnings

VARIED = [
    "mlp",
    "linear T chunks",
    "conv2d stride",
    "tied embedding and head",
    "layer_norm T",
    "ViT",
    "attention seq-first",
    "attention batch-first, T = 3",
    "LSTM, time-first, T = B",
    "weight standardisation, conv",
    "transposed conv2d",
    "bare with T = B",
    "addmm, flattened",
]


@pytest.mark.parametrize("name", VARIED)
@pytest.mark.parametrize("sizes", [(5, 0, 1, 2, 3, 4), (1, 5, 2), (2, 4, 1, 5), (4, 5, 3)], ids=str)
def test_batches_of_different_sizes_are_exact(name, sizes):
    model, batch = made(CASES[name])
    geometry = geometries(model)[1]
    for n in sizes:
        part = tuple(x[:n] for x in batch)
        built = Bookkeeping(model, loss, part)
        taken = built.norms(geometry)
        sums = built.weighted_sum(some_weights(n))
        if n == 0:
            assert taken.shape == (0,)
            assert not any(total.any() for total in sums.values())
            continue
        gradients = one_by_one(model, part)
        close(taken, whitened_norms(gradients, geometry))
        for p, total in summed(gradients, some_weights(n)).items():
            close(sums[p], total)


@pytest.mark.parametrize("lengths", [(4, 1, 2), (1, 4, 5), (5, 3, 5)], ids=str)
@pytest.mark.parametrize("flat", [False, True])
def test_sequences_of_different_lengths_are_exact(lengths, flat):
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.l(x.reshape(-1, 7) if flat else x).tanh()
        return m.o(h.view(len(x), -1, 9)).mean(1)

    torch.manual_seed(0)
    model = Through(forward, l=nn.Linear(7, 9), o=nn.Linear(9, 3)).double()
    for length in lengths:
        assert_exact(model, rows(5, length, 7))


def test_alternating_losses_are_exact():
    torch.manual_seed(0)
    model = Through(lambda m, x: m.o(m.l(x).tanh()), l=nn.Linear(7, 9), o=nn.Linear(9, 4)).double()
    batch = rows(5, 4, 7)

    def hidden(model: nn.Module, batch: Batch) -> Tensor:
        return batch[1] * model.l(batch[0]).sin().flatten(1).sum(1)

    for _ in range(2):
        assert_exact(model, batch)
        assert_exact(model, batch, hidden)
        assert_exact(model, tuple(x[:2] for x in batch), hidden)


@pytest.mark.parametrize("first", [True, False])
def test_norms_and_sums_agree_when_the_mode_changes(first):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(7, 9),
        nn.Dropout(0.5),
        nn.LSTM(9, 8, num_layers=1, batch_first=True),
    ).double()
    model = Through(lambda m, x: m.s[2](m.s[1](m.s[0](x)))[0], s=model)
    for mode in (first, not first, first):
        model.train(mode)
        built = Bookkeeping(model, loss, rows(4, 3, 7))
        taken = built.norms(ball(model))
        close(norms_of_single_examples(built, 4), taken)
        if not mode:
            assert_exact(model, rows(4, 3, 7))


def test_alternating_models_are_exact():
    one, two = mlp(), nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 4)).double()
    for _ in range(2):
        assert_exact(one, rows(5))
        assert_exact(two, rows(4, 3, 7))


def test_models_that_freeze_other_parameters_are_exact():
    model, batch = mlp(), rows(5)
    for name in ("0.weight", "none", "0.bias", "2.weight"):
        assert_exact(frozen(model, name), batch)


ORDERS = [*VARIED[:5], "used twice, T chunks and no T", "weight_norm", "conv2d pixel gram", "LSTM"]


@pytest.mark.parametrize("name", ORDERS)
def test_one_engine_answers_in_any_order(name):
    model, batch = made(CASES[name])
    gradients = one_by_one(model, batch)
    weights = some_weights(B)
    total = summed(gradients, weights)
    for sums_first in (False, True):
        built = Bookkeeping(model, loss, batch)
        for round in range(2):
            if sums_first or round:
                sums = built.weighted_sum(weights)
                for p, value in total.items():
                    close(sums[p], value)
            for geometry in (*geometries(model), *geometries(model, seed=9)):
                close(built.norms(geometry), whitened_norms(gradients, geometry))


@pytest.mark.parametrize(
    "name", ["mlp", "linear T chunks", "conv2d stride", "weight_norm", "used twice with T"]
)
def test_two_engines_of_one_model_do_not_disturb_each_other(name):
    model, batch = made(CASES[name])
    parts = [tuple(x[:3] for x in batch), tuple(x[2:] for x in batch)]
    engines = [Bookkeeping(model, loss, part) for part in parts]
    geometry, other = geometries(model)[1:]
    taken = [built.norms(geometry) for built in engines]
    for built, part, own in zip(engines, parts, taken, strict=True):
        gradients = one_by_one(model, part)
        close(own, whitened_norms(gradients, geometry))
        assert_sums(built, some_weights(3), gradients)
        close(built.norms(other), whitened_norms(gradients, other))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["input", "loss"])
@pytest.mark.parametrize("i", [1, 4], ids=["probed", "not probed"])
@pytest.mark.parametrize(
    "name",
    [
        "conv2d stride",
        "conv2d pixel gram",
        "embedding",
        "layer_norm T",
        "linear T chunks",
        "linear T gram",
        "group_norm 2d",
        "weight_norm",
        "attention batch-first",
        "LSTM",
        "einsum",
        "ViT",
    ],
)
def test_an_example_that_is_not_finite_does_not_spoil_the_others(name, where, i, bad):
    model, (x, factor) = made(CASES[name])
    gradients = one_by_one(model, (x, factor))
    if where == "input" and x.is_floating_point():
        x[i].flatten()[0] = bad
    else:
        factor[i] = bad
    kept = [j for j in range(B) if j != i]
    weights = some_weights(B)
    weights[i] = 0
    for geometry in geometries(model):
        built = Bookkeeping(model, loss, (x, factor))
        taken = built.norms(geometry)
        assert not taken[i].isfinite()
        close(taken[kept], whitened_norms([gradients[j] for j in kept], geometry))
        assert_sums(built, weights, gradients)
