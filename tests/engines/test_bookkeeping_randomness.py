"""The fast engine uses one dropout mask for norm and sum, and its probe does not disturb the generator."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adamas.engines import Bookkeeping
from tests.support.every_engine import norms_of_single_examples
from tests.support.fast_engine import torch_warnings
from tests.support.models_by_hand import Through, checkpointed, made, param, rows
from tests.support.one_by_one import ball, close, loss, norms

pytestmark = torch_warnings


def test_each_example_has_one_dropout_mask_for_norm_and_sum():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(7, 16), nn.Dropout(0.5), nn.TransformerEncoderLayer(16, 2, 8, dropout=0.3, batch_first=True)
    ).double()
    batch = rows(5, 4, 7)
    built = Bookkeeping(model, loss, batch)
    taken = built.norms(ball(model))
    assert taken.unique().numel() == 5
    close(norms_of_single_examples(built, 5), taken)


@pytest.mark.parametrize("reentrant", [False, True])
def test_dropout_in_a_checkpoint_repeats_the_masks_of_the_forward(reentrant):
    torch.manual_seed(0)
    middle = nn.Sequential(nn.Linear(9, 32), nn.Dropout(0.5), nn.Linear(32, 9))
    model, batch = made(lambda: checkpointed(reentrant, lambda: middle))
    for i in range(3):
        single = tuple(x[i : i + 1] for x in batch)
        norms(model, single)
        torch.manual_seed(5)
        built = Bookkeeping(model, loss, single)
        taken = built.norms(ball(model))
        close(norms_of_single_examples(built, 1), taken)
        sums = built.weighted_sum(torch.ones(1, dtype=torch.float64))
        torch.manual_seed(5)
        plain = copy.deepcopy(model)
        loss(plain, single).sum().backward()
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            close(sums[p], q.grad)


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_dropout_of_a_weight_has_one_mask_for_norm_and_sum(p):
    torch.manual_seed(0)
    model = Through(lambda m, x: F.linear(x, F.dropout(m.w, p, m.training)).tanh(), w=param(6, 7)).double()
    built = Bookkeeping(model, loss, rows(4))
    taken = built.norms(ball(model))
    close(norms_of_single_examples(built, 4), taken)


def test_the_probe_does_not_change_the_random_numbers_of_a_run():
    def taken(probed: bool) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(7, 9), nn.Dropout(0.5), nn.Linear(9, 3)).double()
        if probed:
            norms(model, rows(4))
        batch = rows(5)
        torch.manual_seed(3)
        return norms(model, batch)

    assert torch.equal(taken(False), taken(True))
