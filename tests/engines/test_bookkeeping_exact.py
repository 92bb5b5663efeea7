"""The fast engine on models as people write them equals plain autograd, one example at a time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from adamas import Geometry
from adamas.engines import Bookkeeping, Loop
from adamas.engines.bookkeeping import norms as norms_module
from adamas.engines.bookkeeping.convolution import Convolution
from adamas.engines.bookkeeping.outer import Outer
from tests.support.fast_engine import exact_or_refused, torch_warnings
from tests.support.models_by_hand import (
    CASES,
    B,
    Through,
    attention,
    checkpointed,
    made,
    mlp,
    normed,
    param,
    recurrent,
    rows,
)
from tests.support.one_by_one import Batch, assert_exact, ball, close, loss, norms, one_by_one, whitened_norms

pytestmark = torch_warnings


@pytest.mark.parametrize("name", CASES)
def test_exact(name):
    model, batch = made(CASES[name])
    assert_exact(model, batch)


@pytest.mark.parametrize(
    ("name", "kind", "pays"),
    [
        ("linear T gram", Outer, True),
        ("linear T gram in halves", Outer, True),
        ("linear T chunks", Outer, False),
        ("conv2d pixel gram", Convolution, True),
        ("conv2d pixel gram, stride", Convolution, True),
        ("conv2d pixel gram, dilated", Convolution, True),
        ("conv2d pixel gram, same and even", Convolution, True),
        ("conv2d padding", Convolution, False),
    ],
)
def test_cases_take_the_formula_of_their_name(name, kind, pays, monkeypatch):
    verdicts = []
    gram_pays = kind.gram_pays

    def spy(record: Any) -> bool:
        verdicts.append(gram_pays(record))
        return verdicts[-1]

    monkeypatch.setattr(kind, "gram_pays", spy)
    model, batch = made(CASES[name])
    norms(model, batch)
    assert (True in verdicts) == pays


def test_a_tied_weight_adds_the_cross_term_of_its_two_uses(monkeypatch):
    seen = []
    formula = norms_module._tied_squares
    monkeypatch.setattr(norms_module, "_tied_squares", lambda *args: seen.append(formula(*args)) or seen[-1])
    model, batch = made(CASES["tied embedding and head, gram"])
    norms = Bookkeeping(model, loss, batch).norms(ball(model))
    assert len(seen) == 1
    assert seen[0] is not None
    close(norms, whitened_norms(one_by_one(model, batch, loss), ball(model)))


@pytest.mark.parametrize(
    "middle", [None, lambda: weight_norm(nn.Linear(9, 9))], ids=["layers", "weight_norm"]
)
def test_reentrant_checkpointing_is_exact(middle):
    expected, batch = made(lambda: checkpointed(False, middle))
    model, _ = made(lambda: checkpointed(True, middle))
    gradients = one_by_one(expected, batch)
    renamed = dict(zip(expected.parameters(), model.parameters(), strict=True))
    assert_exact(model, batch, gradients=[{renamed[p]: g for p, g in each.items()} for each in gradients])


@pytest.mark.parametrize("length", [3, 4, 5])
def test_a_bare_parameter_is_exact_with_the_examples_on_the_second_axis(length):
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.l(x.transpose(0, 1) + m.shift).tanh().transpose(0, 1)

    torch.manual_seed(0)
    for shape in ((7,), (length, 1, 7)):
        model = Through(forward, l=nn.Linear(7, 3), shift=param(*shape)).double()
        assert_exact(model, rows(5, length, 7))


# --- layouts that sizes do not reveal -----------------------------------------------------------------


def test_a_layout_is_not_guessed_while_gradients_are_zero():
    # Every layout fits a last layer of zeros; attention moves the examples to the second axis.
    model, batch = made(attention(3, True))
    batch = tuple(x[:3] for x in batch)
    with torch.no_grad():
        model.o.weight.zero_()
    assert_exact(model, batch)
    with torch.no_grad():
        model.o.weight.normal_()
    assert_exact(model, batch)


def test_a_layout_is_not_guessed_where_several_fit():
    # Time first, with as many places as examples. With lengths of 1, 2 and 3 the last places are a diagonal,
    # so that either axis could be that of the examples.
    torch.manual_seed(0)
    model = nn.Linear(4, 4).double()
    x = 10 * torch.randn(3, 3, 4, dtype=torch.float64)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        h = model(batch[0].transpose(0, 1)).square().sum(2)  # (time, examples)
        return h.gather(0, batch[1][None] - 1)[0]

    ball = Geometry.ball(model.parameters())
    for lengths in ([1, 2, 3], [3, 3, 1]):
        batch = (x, torch.tensor(lengths))
        fast, slow = (engine(model, loss, batch).norms(ball) for engine in (Bookkeeping, Loop))
        torch.testing.assert_close(fast, slow, rtol=1e-12, atol=0)


def test_each_loss_has_its_own_layout():
    # T = B = 3: one loss puts the examples on the first axis of the layer, the other on the second.
    torch.manual_seed(0)
    model = nn.Linear(7, 4).double()
    batch = rows(3, 3, 7)

    def time_first(model: nn.Module, batch: Batch) -> Tensor:
        return batch[1] * model(batch[0].transpose(0, 1)).tanh().transpose(0, 1).flatten(1).square().sum(1)

    assert_exact(model, batch)
    assert_exact(model, batch, time_first)
    assert_exact(model, batch)


# --- models that may also be refused ------------------------------------------------------------------


MAYBE: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "rms_norm time-first": normed(lambda: nn.RMSNorm(9), 4, axis=1),
    "rms_norm time-first, T = B": normed(lambda: nn.RMSNorm(9), B, axis=1),
    "rms_norm time-first, T = 3": normed(lambda: nn.RMSNorm(9), 3, axis=1),
    "LSTM with projections": recurrent(nn.LSTM, proj_size=3),
    "LSTM with projections, T = 1": recurrent(nn.LSTM, 1, proj_size=3),
    "class token by repeat": lambda: (
        Through(
            lambda m, x: m.l(torch.cat([m.c.repeat(len(x), 1, 1), x], 1)).tanh(),
            l=nn.Linear(7, 3),
            c=param(1, 1, 7),
        ),
        torch.randn(B, 4, 7),
    ),
    "learned first state": lambda: (
        Through(
            lambda m, x: m.r(x, m.h.expand(1, len(x), 8).contiguous())[0],
            r=nn.GRU(7, 8, batch_first=True),
            h=param(1, 1, 8),
        ),
        torch.randn(B, 4, 7),
    ),
    "time folded into the examples of a convolution": lambda: (
        Through(lambda m, x: m.c(x.flatten(0, 1)).view(len(x), -1).tanh(), c=nn.Conv1d(2, 3, 2)),
        torch.randn(B, 4, 2, 5),
    ),
    "rows in a loop": lambda: (
        Through(lambda m, x: torch.stack([m.l(row) for row in x]).tanh(), l=nn.Linear(7, 3)),
        torch.randn(B, 7),
    ),
    "packed sequence": lambda: (
        Through(
            lambda m, x: nn.utils.rnn.pad_packed_sequence(
                m.r(nn.utils.rnn.pack_padded_sequence(x, torch.full((len(x),), 4), batch_first=True))[0],
                batch_first=True,
            )[0],
            r=nn.LSTM(7, 8, batch_first=True),
        ),
        torch.randn(B, 4, 7),
    ),
}


@pytest.mark.parametrize("name", MAYBE)
def test_exact_or_refused(name):
    exact_or_refused(*made(MAYBE[name]))


def test_a_weight_computed_from_each_example_is_exact_or_refused():
    # Each example has its own weight, and F.linear is called for one example at a time.
    def forward(m: Any, x: Tensor) -> Tensor:
        weights = m.h(x).view(len(x), 4, 7)
        return torch.cat([F.linear(x[i : i + 1], weights[i], m.b) for i in range(len(x))]).tanh()

    model, batch = made(lambda: (Through(forward, h=nn.Linear(7, 28), b=param(4)), torch.randn(B, 7)))
    exact_or_refused(model, batch)


SELECTIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "mask": lambda m, x: x[x[..., 0] > 0],
    "masked_select": lambda m, x: x.masked_select((x[..., :1] > 0).expand_as(x)).view(-1, 7),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_places_selected_by_a_mask_are_exact_or_refused(name):
    # The mask selects two places of each of the first three examples, then one and three.
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.l(SELECTIONS[name](m, x)).tanh().sum(1)
        owner = (x[..., 0] > 0) * torch.arange(1, len(x) + 1).unsqueeze(1)
        owner = owner.flatten().masked_select(owner.flatten() > 0) - 1
        return torch.zeros(len(x), dtype=x.dtype).index_add(0, owner, h).unsqueeze(1)

    torch.manual_seed(0)
    model = Through(forward, l=nn.Linear(7, 4)).double()
    x, factor = rows(5, 4, 7)
    x[..., 0] = -1.0
    for i, count in enumerate([2, 2, 2, 1, 3]):
        x[i, :count, 0] = 1.0
    exact_or_refused(model, (x, factor))


def adversarial(model: nn.Module, batch: Batch) -> Tensor:
    x = batch[0].detach().requires_grad_()
    (direction,) = torch.autograd.grad(loss(model, (x, batch[1])).sum(), x)
    return loss(model, (batch[0] + 0.1 * direction.sign(), batch[1]))


def gradient_penalty(model: nn.Module, batch: Batch) -> Tensor:
    x = batch[0].detach().requires_grad_()
    (slope,) = torch.autograd.grad(loss(model, (x, batch[1])).sum(), x, create_graph=True)
    return loss(model, batch) + slope.square().sum(1)


@pytest.mark.parametrize("inner", [adversarial, gradient_penalty], ids=lambda f: f.__name__)
@pytest.mark.parametrize("enabled", [False, True], ids=["plain", "enable_grad"])
@pytest.mark.parametrize("n", [1, 5])
def test_a_backward_within_the_loss_is_exact_or_refused(inner, enabled, n):
    exact_or_refused(mlp(), rows(n), torch.enable_grad()(inner) if enabled else inner)
