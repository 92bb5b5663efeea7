"""Examples without a finite gradient: `adamas check` fails if all are, and the owner can count them."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from adamas.check import FAIL, NOT_APPLICABLE, PASS, count_unusable
from adamas.engines.loop import Loop
from tests.support.checked_runs import NAMES, N, data, look, maker, plain
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


MIXED, GRADIENTS = "examples mixed by a layer", "gradients as autograd's"
FEW = [0, 1, 17, 50, 119]


@pytest.mark.parametrize("engine", ["bookkeeping", "vmap"])
def test_no_row_fails_because_a_few_examples_are_unusable(engine):
    verdicts = {
        name: look(name, maker(dataset=spoiled(FEW, math.nan), engine=engine, seed=1)) for name in NAMES
    }
    assert [(name, seen) for name, (verdict, seen) in verdicts.items() if verdict == FAIL] == []
    assert verdicts[MIXED][0] == verdicts[GRADIENTS][0] == PASS
    assert "gradients and norms differ" in verdicts[GRADIENTS][1]


def test_without_usable_examples_there_is_nothing_to_compare():
    make_run = maker(dataset=spoiled(slice(None), math.nan))
    assert look(MIXED, make_run)[0] == look(GRADIENTS, make_run)[0] == NOT_APPLICABLE


def usable_rows(x):
    return x.isfinite().all(1, keepdim=True)


def spoiling(model, batch):
    """Leaves the usable examples as they are, unless one of the batch is NaN."""
    x, y = batch
    return loss(model, (x + 0 * x.sum(0) if len(x) > 3 else x, y))


def centered_on_usable_ones(model, batch):
    x, y = batch
    usable = usable_rows(x)
    mean = torch.where(usable, x, 0).sum(0) / usable.sum().clamp(min=1)
    return loss(model, (x - mean if len(x) > 3 else x, y))


def centered(model, batch):
    x, y = batch
    return loss(model, (x - x.mean(0) if len(x) > 3 else x, y))


def counting(model, batch):
    """Changes the usable examples by how many others are unusable."""
    unusable = (~usable_rows(batch[0])).sum()
    return loss(model, batch) * (1 + unusable * (len(batch[0]) > 3))


def with_dropout():
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 2))


@pytest.mark.parametrize("make_model", [plain, with_dropout])
@pytest.mark.parametrize("mixing", [spoiling, centered_on_usable_ones, centered, counting])
def test_mixing_is_seen_beside_unusable_examples(mixing, make_model):
    make_run = maker(make_model, dataset=spoiled(FEW, math.nan), loss=mixing, engine="loop", seed=1)
    assert look(MIXED, make_run)[0] == FAIL


def test_an_engine_in_which_an_unusable_example_spoils_another_is_seen(monkeypatch):
    original = Loop.norms

    def norms(self, geometry):
        found = original(self, geometry)
        return found + 0 * found.sum()

    monkeypatch.setattr(Loop, "norms", norms)
    assert look(GRADIENTS, maker(dataset=spoiled(FEW, math.nan), engine="loop"))[0] == FAIL
    assert look(GRADIENTS, maker(engine="loop"))[0] == PASS


def test_an_example_that_becomes_unusable_in_training_does_not_fail():
    torch.manual_seed(0)
    start = plain()[2].bias.detach()

    def vanishing(model, batch):
        trained = (model[2].bias.detach() != start).any()
        return loss(model, batch) * torch.where((batch[0][:, 0] > 1) & trained, math.nan, 1.0)

    make_run = maker(loss=vanishing, engine="loop", seed=1)
    assert look(MIXED, make_run)[0] == look(GRADIENTS, make_run)[0] == PASS
