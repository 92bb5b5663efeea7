"""One record moves the sum by at most 1: models and losses that mix examples are refused with the line."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from adamas import UnsupportedError
from adamas.engines import ENGINES
from tests.support.promised_runs import LIMIT, Forward, N, cross_entropy, data, influence, layers, made
from tests.support.through import Through

# --- models -------------------------------------------------------------------------------------------


def sorted_by_length(m: Any, x: Tensor) -> Tensor:
    """Sorts the rows, adds to each its neighbour, and restores their order."""
    order = x[:, 0].argsort()
    h = m.first(x[order]).tanh()
    h = torch.cat([h[:1], h[1:] + h[:-1]])
    return m.second(h[order.argsort()])


def statistics_from_eight_on(m: Any, x: Tensor) -> Tensor:
    h = m.first(x)
    return m.second((h - h.mean(0) if len(h) >= 8 else h).tanh())


def statistics_of_many(m: Any, x: Tensor) -> Tensor:
    """Mixes examples from the eighth on, without reading their number."""
    h = m.first(x)
    return m.second((h - h[7:].sum(0)).tanh())


def switch_with_capacity(m: Any, x: Tensor) -> Tensor:
    first = (m.first(x)[:, :1] > 0).float()
    place = first.cumsum(0)
    return m.second(m.first(x) * (first * (place <= 4)))


def batch_normalised_by_hand(m: Any, x: Tensor) -> Tensor:
    h = m.first(x)
    return m.second((h - h.mean(0, keepdim=True)) / h.std(0, keepdim=True))


MIXING: dict[str, Forward] = {
    f.__name__: f
    for f in (
        *(sorted_by_length, statistics_from_eight_on, statistics_of_many, switch_with_capacity),
        batch_normalised_by_hand,
    )
}


@pytest.mark.parametrize("name", MIXING)
def test_a_model_that_mixes_its_examples_is_refused_with_the_line(name):
    with pytest.raises(UnsupportedError, match=r"test_promise_mixing\.py:\d+"):
        made(Through(MIXING[name], **layers()), data(5))


# --- losses -------------------------------------------------------------------------------------------


def same_class_attraction(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch[0])
    alike = (batch[1][:, None] == batch[1][None]).float()
    return F.cross_entropy(out, batch[1], reduction="none") + (torch.cdist(out, out) * alike).mean(1)


def hard_examples(model: nn.Module, batch: Any) -> Tensor:
    losses = cross_entropy(model, batch)
    return losses * (losses >= losses.topk(min(16, losses.shape[0]))[0][-1])


def hard_examples_without_counting(model: nn.Module, batch: Any) -> Tensor:
    losses = cross_entropy(model, batch)
    return losses * (losses >= losses.detach().median())


def over_the_positives(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model, batch) / (batch[1] == 1).sum().clamp(min=1)


def over_the_number(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model, batch) * (2.0 if batch[0].shape[0] > 20 else 1.0)


def over_the_length(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model, batch) / len(batch[0])


LOSSES = (
    *(same_class_attraction, hard_examples, hard_examples_without_counting, over_the_positives),
    *(over_the_number, over_the_length),
)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda f: f.__name__)
def test_a_loss_that_mixes_its_examples_is_refused_with_the_line(loss):
    with pytest.raises(UnsupportedError, match=r"test_promise_mixing\.py:\d+"):
        made(nn.Linear(5, 3), data(5), loss)


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_dividing_a_float_by_the_number_of_examples_is_refused(engine):
    # A float on the left reads the integer's value, and calls none of its methods.
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model, batch) * (1.0 / len(batch[0]))

    text = r"test_promise_mixing\.py:\d+" if engine == "bookkeeping" else "alone in its batch"
    with pytest.raises(UnsupportedError, match=text):
        made(nn.Linear(5, 3), data(5), loss, engine=engine)


# --- bounds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [cross_entropy, over_the_length], ids=lambda f: f.__name__)
def test_the_loop_is_bounded_for_every_loss(loss):
    # The loop calls the loss on one example, so that its length is 1.
    run = made(nn.Linear(5, 3), data(5))._replaced(loss=loss, engine="loop")
    assert max(influence(run, record) for record in range(4)) <= LIMIT


def test_a_run_is_bounded_if_the_first_examples_have_no_gradient():
    dataset = data(5)
    weights = torch.zeros(N)
    weights[-5:] = 1.0
    rows = TensorDataset(*dataset.tensors, weights)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model, batch) * batch[2]

    run = made(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)), rows, loss)
    assert influence(run, N - 1) <= LIMIT
    assert influence(run, 0) == 0.0


def test_a_sound_run_is_bounded_and_reaches_the_bound():
    run = made(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)), data(5))
    moved = [influence(run, record) for record in range(N)]
    assert max(moved) <= LIMIT
    assert math.isclose(max(moved), 1.0, rel_tol=1e-5)
