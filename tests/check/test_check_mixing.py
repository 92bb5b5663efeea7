"""`adamas check` catches losses and collate functions that mix examples."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import default_collate

from adamas.check import FAIL
from tests.support.sabotaged_runs import (
    MIXED,
    ROWS,
    SENSITIVITY,
    TENSORS,
    Examples,
    assert_caught,
    loss,
    made,
    rows_of,
)


def hard_examples(model, batch):
    losses = loss(model, batch)
    if len(losses) <= 16:
        return losses
    return losses * (losses >= losses.detach().sort().values[-16])


def batch_statistics(model, batch):
    x, y = batch
    return loss(model, (x - x.mean(0) if len(x) > 7 else x, y))


def classes_together(model, batch):
    x, y = batch
    hidden = model.first(x)
    same = (y[:, None] == y[None]).to(x) / len(y)
    return loss(model, batch) + (hidden - same @ hidden.detach()).square().mean(1) * (len(y) > 3)


def capacity(model, batch):
    _, y = batch
    place = (y == 1).cumsum(0)
    return loss(model, batch) * ((y == 0) | (place <= 8))


def neighbours_in_the_batch(model, batch):
    x, y = batch
    return loss(model, (x + (x.roll(1, 0) if len(x) > 30 else 0 * x), y))


class Centered(torch.autograd.Function):
    """Mixes examples in the backward pass only."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient - gradient.mean(0) if len(gradient) > 3 else gradient


def backward_function(model, batch):
    x, y = batch
    hidden = Centered.apply(torch.tanh(model.first(x)))
    return F.cross_entropy(model.last(hidden), y, reduction="none")


def backward_hook(model, batch):
    x, y = batch
    hidden = torch.tanh(model.first(x))
    if hidden.requires_grad and len(x) > 3:
        hidden.register_hook(lambda gradient: gradient - gradient.mean(0))
    return F.cross_entropy(model.last(hidden), y, reduction="none")


MIXING = {
    "hard-example mining": hard_examples,
    "batch statistics from 8 examples on": batch_statistics,
    "a term that pulls classes together": classes_together,
    "a capacity": capacity,
    "the neighbour in batches of more than 30": neighbours_in_the_batch,
    "an autograd function that mixes": backward_function,
    "a hook that mixes": backward_hook,
}


@pytest.mark.parametrize("kind", MIXING)
def test_a_loss_that_mixes_examples_is_caught(monkeypatch, kind):
    assert_caught(monkeypatch, lambda: made(MIXING[kind], engine="vmap"), MIXED)


@pytest.mark.audits
@pytest.mark.filterwarnings("ignore:engine='auto' takes")
@pytest.mark.parametrize("kind", MIXING)
def test_a_loss_that_mixes_examples_is_caught_with_the_default_engine(monkeypatch, kind):
    """A row fails, or `make_private` refuses the loss."""
    rows = rows_of(monkeypatch, lambda: made(MIXING[kind]), SENSITIVITY, MIXED)
    assert FAIL in {row.verdict for row in rows.values()}


def with_texts(examples):
    x, y = default_collate(examples)
    return x, y, [str(float(value)) for value in x[:, 0]]


def texts_of_large_batches(examples):
    return with_texts(examples) if len(examples) > 20 else (*default_collate(examples), None)


def repeated(examples):
    return default_collate([examples[i // 2 * 2] for i in range(len(examples))])


def mixed_up(examples):
    x, y = default_collate(examples)
    return x.lerp(x[torch.randperm(len(x))], 0.3), y


def centered(examples):
    x, y = default_collate(examples)
    return x - x.mean(0), y


def sorted_rows(examples):
    return default_collate(sorted(examples, key=lambda example: float(example[0][0])))


def of_large_batches(examples):
    return centered(examples) if len(examples) > 20 else default_collate(examples)


def padded_by_others(examples):
    """Pads each row with values of the longest one."""
    x, y = default_collate(examples)
    longest = 1 + (x[:, 0].abs() * 10).long() % 6
    row = x[longest.argmax()]
    return torch.where(torch.arange(6) < longest[:, None], x, row), y


def unseeded(examples):
    x, y = default_collate(examples)
    return x.lerp(x.flip(0), float(np.random.default_rng().uniform())), y


COLLATED = {
    "texts beside tensors": (with_texts, TENSORS),
    "texts in large batches": (texts_of_large_batches, TENSORS),
    "every other example twice": (repeated, ROWS),
    "mixup": (mixed_up, ROWS),
    "mixup with other random values": (unseeded, ROWS),
    "the batch's mean subtracted": (centered, ROWS),
    "the same, from 21 examples on": (of_large_batches, ROWS),
    "sorted rows": (sorted_rows, ROWS),
    "padding made of another example": (padded_by_others, ROWS),
}


@pytest.mark.parametrize("kind", COLLATED)
def test_a_collate_function_that_mixes_is_caught(monkeypatch, kind):
    """Sets collate_fn after the run is made, since `make_private` may refuse it."""
    collate, name = COLLATED[kind]

    def make_run():
        run = made(lambda model, batch: loss(model, batch[:2]), dataset=Examples())
        run.loader.collate_fn = collate
        return run

    assert_caught(monkeypatch, make_run, name)
