"""Losses as users write them: those that mix examples are refused, and the others are exact."""

import math
import operator
import threading

import pytest
import torch
from torch import nn

from adamas import Geometry, UnsupportedError
from adamas.engines import Bookkeeping, Loop
from adamas.engines.bookkeeping import engine as bookkeeping
from adamas.engines.bookkeeping.counts import Count, Unit
from adamas.engines.bookkeeping.recording import Recorder
from tests.support import mixing_backwards  # noqa: F401, registers losses
from tests.support.mixing_losses import ATTACKS
from tests.support.separated_calls import WEIGHT

pytestmark = pytest.mark.filterwarnings("ignore")


class Model(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.register_buffer("buf", torch.zeros(1))


def batch_of(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=generator), torch.randint(3, (n,), generator=generator)


def norms_of(loss, batch, model=None, engine=Bookkeeping):
    if model is None:
        torch.manual_seed(0)
        model = Model()
    return engine(model, lambda model, batch: loss(model, *batch), batch).norms(
        Geometry.ball(model.parameters())
    )


@pytest.fixture
def without_probes(monkeypatch):
    """Disables the probe of the first batch, so that only the proof can refuse."""
    monkeypatch.setattr(bookkeeping, "check_loss", lambda *_: None)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_loss_that_mixes_is_refused_without_the_probe(name, without_probes):
    torch.manual_seed(0)
    model = Model()
    refused = False
    for seed in range(3):  # some attacks need another order of the examples, or a second step
        try:
            norms_of(ATTACKS[name], batch_of(3, seed), model)
        except UnsupportedError:
            refused = True
    assert refused


def in_a_thread(model, x, y):
    means = []
    thread = threading.Thread(target=lambda: means.append(x.mean()))
    thread.start()
    thread.join()
    return model(x).sum(1) * means[0]


def test_values_from_another_thread_are_refused(without_probes):
    with pytest.raises(UnsupportedError):
        norms_of(in_a_thread, batch_of(3))


HARMLESS = {
    "views written": lambda model, x, y: _into(torch.zeros(len(x), 4), x, model),
    "columns written": lambda model, x, y: _columns(model, x),
    "sorted and undone": lambda model, x, y: model(x).sum(1)[x[:, 0].argsort()][x[:, 0].argsort().argsort()],
    "selected and put back": lambda model, x, y: _selected(model, x),
    "own labels": lambda model, x, y: model(x)[torch.arange(len(x)), y],
    "class weights": lambda model, x, y: (
        model(x).sum(1) * torch.arange(4.0).expand(len(x), 4)[torch.arange(len(x)), y]
    ),
    "one of equal rows": lambda model, x, y: model(x + torch.arange(4.0).expand(len(x), 4)[0]).sum(1),
    "heads folded": lambda model, x, y: (
        model(x).view(len(x) * 2, 2).softmax(1).view(len(x), -1).square().sum(1)
    ),
    "two views joined": lambda model, x, y: sum(torch.cat([model(x), model(-x)]).chunk(2)).square().sum(1),
    "penalty": lambda model, x, y: model(x).square().sum(1) * _penalty(x),
    "loop over columns": lambda model, x, y: sum(model(x)[:, k] * x[:, k] for k in range(x.shape[1])),
    "mean by hand": lambda model, x, y: model(x).sum(1) / (x.numel() / len(x)),
    "number compared with zero": lambda model, x, y: model(x).sum(1) * (2.0 if len(x) > 0 else 1.0),
}


def _into(z, x, model):
    z.add_(x)
    return model(z).sum(1)


def _columns(model, x):
    z = torch.zeros_like(x)
    for k in range(4):
        z[:, k] = x[:, 3 - k] * 2
    return model(z).square().sum(1)


def _selected(model, x):
    chosen = x[:, 0] > 0
    rows = model(x[chosen]).square().sum(1)
    return torch.zeros(len(x)).index_add(0, chosen.nonzero()[:, 0], rows) + model(x).sum(1)


def _penalty(x):
    z = x.clone().requires_grad_()
    (g,) = torch.autograd.grad((z**3).sum(), z)
    return g.sum(1).detach()


@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.parametrize("name", HARMLESS)
def test_a_loss_that_does_not_mix_has_the_norms_of_the_loop(name, n):
    if n == 0:
        assert norms_of(HARMLESS[name], batch_of(0)).shape == (0,)
        return
    batch = batch_of(n, 1)
    torch.testing.assert_close(
        norms_of(HARMLESS[name], batch), norms_of(HARMLESS[name], batch, engine=Loop), rtol=1e-4, atol=1e-5
    )


def test_a_mask_that_was_changed_selects_other_rows():
    recorder = Recorder({WEIGHT: "w"}, 3, Geometry.ball([WEIGHT]))
    x = recorder.start(torch.tensor([1.0, -1.0, -2.0]))
    with recorder:
        mask = x > 0
        first = x[mask]
        mask.view(-1).logical_not_()
        second = x[mask]
        mask.data.logical_not_()
        third = x[mask]
    for t, owner in ((first, [0]), (second, [1, 2]), (third, [0])):
        assert recorder.mark(t).place.rows.owner.tolist() == owner


def test_a_batch_of_one_is_exact_after_a_larger_one():
    torch.manual_seed(0)
    model = Model()
    for n in (5, 1, 0, 1, 2):
        found = norms_of(HARMLESS["heads folded"], batch_of(n, n), model)
        if n:
            expected = norms_of(HARMLESS["heads folded"], batch_of(n, n), model, Loop)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


# A plain integer would allow these uses.
@pytest.mark.parametrize(
    "plain",
    [
        lambda n: math.log(n),
        lambda n: int(f"{n}"),
        lambda n: 1.0 / n,
        lambda n: 0.5 * n,
        lambda n: operator.gt(8.5, n),
    ],
    ids=["math.log", "text", "1.0 / n", "0.5 * n", "8.5 > n"],
)
def test_a_number_of_examples_cannot_be_read(plain):
    with pytest.raises(UnsupportedError):
        plain(Count(1, Unit(5)))


@pytest.mark.parametrize(
    "plain",
    [
        operator.index,
        lambda n: len(range(n)),
        lambda n: math.gcd(n, 60),
        lambda n: len([0 for _ in range(n)]),
        lambda n: torch.Size((n, 3)).numel(),
        lambda n: [1.0, 2.0, 4.0, 8.0, 16.0, 32.0][n],
    ],
    ids=["operator.index", "range", "math.gcd", "comprehension", "torch.Size", "list"],
)
def test_reading_the_number_of_examples_as_a_size_is_refused_at_the_next_function(plain):
    with pytest.raises(UnsupportedError, match="reads the number of examples"):
        norms_of(lambda model, x, y: model(x).sum(1) * plain(len(x)), batch_of(5))


def test_sizes_in_a_forward_count_examples():
    seen = []

    def loss(model, x, y):
        seen.extend(
            [
                len(x),
                x.shape[0],
                x.size(0),
                x.size()[0],
                x.numel(),
                x.view(len(x) * 2, 2).shape[0],
                x.shape[1],
            ]
        )
        return model(x).sum(1)

    norms_of(loss, batch_of(5))
    assert [type(size) for size in seen[-7:]] == [Count] * 6 + [int]
    assert [size.times for size in seen[-7:-1]] == [1, 1, 1, 1, 4, 2]
    assert len(batch_of(5)[0]) == 5
