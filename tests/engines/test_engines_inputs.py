"""Batches and losses that every engine accepts, and those that it refuses."""

from collections import namedtuple

import pytest
import torch
from torch import nn

from adamas import UnsupportedError
from adamas.engines import ENGINES, Loop, Vmap
from tests.support.every_engine import assert_close, assert_sums, data, every_engine, mlp
from tests.support.one_by_one import ball, loss, one_by_one, whitened_norms
from tests.support.through import Through

# --- batches ------------------------------------------------------------------------------------------


Pair = namedtuple("Pair", ["x", "factor"])

CONTAINERS = {
    "dict": (lambda x, f: {"x": x, "factor": f}, lambda b: (b["x"], b["factor"])),
    "nested tuple": (lambda x, f: ((x,), [f]), lambda b: (b[0][0], b[1][0])),
    "namedtuple": (lambda x, f: Pair(x, f), lambda b: (b.x, b.factor)),
    "dict of namedtuple": (lambda x, f: {"pair": Pair(x, [f])}, lambda b: (b["pair"].x, b["pair"].factor[0])),
    "with None": (lambda x, f: {"x": x, "factor": f, "scale": None}, lambda b: (b["x"], b["factor"])),
}


@every_engine
@pytest.mark.parametrize("container", CONTAINERS)
def test_nested_batches_are_exact(engine, container):
    pack, unpack = CONTAINERS[container]
    model, batch = mlp(), data(4)
    gradients = one_by_one(model, batch)
    built = ENGINES[engine](model, lambda model, b: loss(model, unpack(b)), pack(*batch))
    norms = built.norms(ball(model))
    assert_close(norms, whitened_norms(gradients, ball(model)))
    assert_sums(built, torch.ones(4), gradients)


@every_engine
def test_a_batch_may_be_a_single_tensor(engine):
    model, (x, _) = mlp(), data(4)

    def squared(model, x):
        return model(x).square().sum(1)

    norms = ENGINES[engine](model, squared, x).norms(ball(model))
    gradients = one_by_one(model, (x,), lambda model, batch: squared(model, *batch))
    assert_close(norms, whitened_norms(gradients, ball(model)))


@every_engine
@pytest.mark.parametrize(
    "batch",
    [(torch.zeros(3, 3), torch.zeros(2)), (torch.zeros(3, 3), torch.tensor(1.0)), ("text", 1.0)],
    ids=["lengths differ", "a tensor without axes", "no tensor"],
)
def test_a_batch_whose_parts_differ_in_length_is_refused(engine, batch):
    with pytest.raises(ValueError, match="batch"):
        ENGINES[engine](mlp().float(), loss, batch)


# --- losses -------------------------------------------------------------------------------------------


WRONG_LOSSES = {
    "mean over the batch": lambda model, batch: loss(model, batch).mean(),
    "(n, 1)": lambda model, batch: loss(model, batch).unsqueeze(1),
    "(n, T)": lambda model, batch: model(batch[0]).square(),
    "detached": lambda model, batch: loss(model, batch).detach(),
    "constant": lambda model, batch: batch[1],
}


@every_engine
@pytest.mark.parametrize("wrong", WRONG_LOSSES)
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_losses_other_than_one_differentiable_number_per_example_are_refused(engine, wrong, n):
    model, batch = mlp(), data(n)
    with pytest.raises(UnsupportedError, match="loss"):
        ENGINES[engine](model, WRONG_LOSSES[wrong], batch).norms(ball(model))


@every_engine
def test_a_loss_that_is_not_a_tensor_is_refused(engine):
    model, batch = mlp(), data(3)
    with pytest.raises(TypeError, match="tensor"):
        ENGINES[engine](model, lambda model, batch: 1.0, batch).norms(ball(model))


# --- forwards that vmap cannot run --------------------------------------------------------------------


UNVMAPPABLE = {
    "item": lambda m, x: m.layer(x) * (1 + abs(x.sum().item())),
    "control flow": lambda m, x: m.layer(x) if x.sum() > 0 else 2 * m.layer(x),
    "boolean mask": lambda m, x: m.layer(x[x > -9].view(x.shape)),
}


@pytest.mark.parametrize("forward", UNVMAPPABLE)
def test_vmap_refuses_what_it_cannot_run_and_names_the_engine_that_can(forward):
    torch.manual_seed(0)
    model = Through(UNVMAPPABLE[forward], layer=nn.Linear(3, 2)).double()
    batch = data(4)
    with pytest.raises(UnsupportedError, match=r"Through.*engine='loop'"):
        Vmap(model, loss, batch).norms(ball(model))
    gradients = one_by_one(model, batch)
    norms = Loop(model, loss, batch).norms(ball(model))
    assert_close(norms, whitened_norms(gradients, ball(model)))
