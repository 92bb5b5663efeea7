"""Examples without a finite gradient: `adamas check` fails if all are, and the owner can count them."""

import math

import pytest
import torch
from torch.utils.data import TensorDataset

from adamas.check import FAIL, PASS, count_unusable
from tests.support.checked_runs import N, data, look, maker, plain
from tests.support.small_runs import loss


def spoiled(rows, value):
    """Returns the examples with a value in the first column of some rows."""
    x, y = data().tensors
    x = x.clone()
    x[rows, 0] = value
    return TensorDataset(x, y)


def by_autograd(dataset):
    """Counts examples without a finite gradient, one by one and without an engine."""
    torch.manual_seed(0)
    model = plain()
    found = 0
    for i in range(N):
        batch = [part[i : i + 1] for part in dataset.tensors]
        gradients = torch.autograd.grad(loss(model, batch).sum(), list(model.parameters()))
        found += not all(bool(g.isfinite().all()) for g in gradients)
    return found


def test_a_column_of_nan_fails_and_one_finite_example_passes():
    everywhere = slice(None)
    assert look("usable examples", maker(dataset=spoiled(everywhere, math.nan)))[0] == FAIL
    assert look("usable examples", maker(dataset=spoiled(slice(1, None), math.nan)))[0] == PASS
    verdict, seen = look("usable examples", maker())
    assert verdict == PASS
    assert seen.startswith("33 of 33 ")


@pytest.mark.parametrize("engine", ["auto", "vmap", "loop"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_the_count_is_that_of_autograd(value, engine):
    dataset = spoiled([3, 50, 119], value)
    counted = count_unusable(maker(dataset=dataset, engine=engine)())
    assert (counted.count, counted.total) == (by_autograd(dataset), N)
    assert counted.count == (3 if not math.isfinite(value) else 0)
    assert "not private" in str(counted)


def test_counting_changes_neither_the_run_nor_its_ledger():
    weights = []
    for counts in (False, True):
        run = maker(dataset=spoiled([3, 50], math.nan), seed=5)()
        if counts:
            assert count_unusable(run).count == 2
            assert not run.ledger.entries
        for _ in run:
            pass
        weights.append([p.detach().clone() for p in run.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
