"""The fast engine on models as people write them, against plain autograd one example at a time."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from adamas import Geometry, UnsupportedError
from adamas.engines import Bookkeeping
from adamas.engines.bookkeeping import norms as norms_module
from adamas.engines.bookkeeping.convolution import Convolution
from adamas.engines.bookkeeping.outer import Outer
from tests.support.models_by_hand import (
    CASES,
    B,
    Pool,
    Through,
    attention,
    checkpointed,
    made,
    mlp,
    normed,
    param,
    recurrent,
    rows,
    tokens,
)
from tests.support.one_by_one import (
    Batch,
    assert_exact,
    ball,
    close,
    geometries,
    loss,
    norms,
    one_by_one,
    whitened_norms,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:There is a performance drop:UserWarning",
    "ignore:Using padding='same' with even kernel:UserWarning",
    "ignore:None of the inputs have requires_grad:UserWarning",
    "ignore:enable_nested_tensor is True:UserWarning",
    "ignore:Converting a tensor with requires_grad=True to a scalar:UserWarning",
)


# --- the oracle ---------------------------------------------------------------------------------------


def exact_or_refused(model: nn.Module, batch: Batch, loss: Callable[..., Tensor] = loss) -> None:
    try:
        Bookkeeping(model, loss, batch).norms(ball(model))
    except UnsupportedError:
        return
    assert_exact(model, batch, loss)


# --- a. exactness -------------------------------------------------------------------------------------


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
def test_the_formulas_that_cases_are_named_after_are_met(name, kind, pays, monkeypatch):
    verdicts = []
    gram_pays = kind.gram_pays

    def spy(record: Any) -> bool:
        verdicts.append(gram_pays(record))
        return verdicts[-1]

    monkeypatch.setattr(kind, "gram_pays", spy)
    model, batch = made(CASES[name])
    norms(model, batch)
    assert (True in verdicts) == pays


@pytest.mark.parametrize(
    "middle", [None, lambda: weight_norm(nn.Linear(9, 9))], ids=["layers", "weight_norm"]
)
def test_reentrant_checkpointing_is_like_the_other(middle):
    expected, batch = made(lambda: checkpointed(False, middle))
    model, _ = made(lambda: checkpointed(True, middle))
    gradients = one_by_one(expected, batch)
    renamed = dict(zip(expected.parameters(), model.parameters(), strict=True))
    assert_exact(model, batch, gradients=[{renamed[p]: g for p, g in each.items()} for each in gradients])


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


# --- b. the silent traps ------------------------------------------------------------------------------


def test_a_weight_made_of_data_beside_a_followed_bias_keeps_its_gradient():
    # One weight for each example, of which F.linear sees one at a time.
    def forward(m: Any, x: Tensor) -> Tensor:
        weights = m.h(x).view(len(x), 4, 7)
        return torch.cat([F.linear(x[i : i + 1], weights[i], m.b) for i in range(len(x))]).tanh()

    model, batch = made(lambda: (Through(forward, h=nn.Linear(7, 28), b=param(4)), torch.randn(B, 7)))
    exact_or_refused(model, batch)


@pytest.mark.parametrize("trains", [False, True])
def test_a_foreign_weight_beside_a_followed_bias_is_a_constant_or_refused(trains):
    torch.manual_seed(0)
    foreign = torch.randn(4, 9, dtype=torch.float64, requires_grad=trains)
    model, batch = made(
        lambda: (
            Through(lambda m, x: F.linear(m.l(x).tanh(), foreign, m.b), l=nn.Linear(7, 9), b=param(4)),
            torch.randn(B, 7),
        )
    )
    if trains:
        refused(model, batch, "not a trainable parameter of the model", "requires_grad_(False)")
        assert foreign.grad is None
    else:
        assert_exact(model, batch)


@pytest.mark.parametrize("n", [2, 3, 5, 9])
def test_a_weight_made_of_the_batch_beside_a_followed_bias_is_refused(n):
    model = Through(
        lambda m, x: F.linear(x, m.h(x.mean(0)).view(9, 7), m.b).tanh(), h=nn.Linear(7, 63), b=param(9)
    ).double()
    with pytest.raises(UnsupportedError, match="mix"):
        norms(model, rows(n))


MIXING: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "mean without gradient": lambda m, x: m.o(m.l(x * x.detach().mean(0).abs()).tanh()),
    "hidden mean without gradient": lambda m, x: m.o(m.l(x) * m.l(x).detach().mean(0).abs()),
    "mean": lambda m, x: m.o(m.l(x).tanh() - m.l(x).tanh().mean(0)),
    "the first example": lambda m, x: m.o(m.l(x - x[:1].detach()).tanh()),
    "neighbours": lambda m, x: m.o(m.l(x + x.roll(1, 0)).tanh()),
    "the batch's length": lambda m, x: m.o(m.l(x).tanh() / len(x)),
    "in-batch negatives": lambda m, x: (m.l(x) @ m.l(x).t()).logsumexp(1, keepdim=True),
}


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("n", [2, 5])
def test_statistics_over_the_batch_are_refused(name, n):
    torch.manual_seed(0)
    model = Through(MIXING[name], l=nn.Linear(7, 9), o=nn.Linear(9, 3)).double()
    with pytest.raises(UnsupportedError, match="mix"):
        norms(model, rows(n))


def test_statistics_over_the_batch_without_gradient_are_refused_in_training_mode_too():
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.l(x)
        return m.o(h * h.detach().mean(0).abs() if m.training else h)

    torch.manual_seed(0)
    model = Through(forward, l=nn.Linear(7, 9), o=nn.Linear(9, 3)).double()
    with pytest.raises(UnsupportedError, match="mix"):
        norms(model, rows(5))


def test_statistics_of_a_second_loss_are_refused():
    model, batch = mlp(), rows(5)
    norms(model, batch)

    def mixing(model: nn.Module, batch: Batch) -> Tensor:
        out = model(batch[0])
        return (out - out.mean(0)).square().sum(1)

    with pytest.raises(UnsupportedError, match="mix"):
        norms(model, batch, mixing)


@pytest.mark.parametrize("n", [1, 5])
def test_spectral_norm_in_training_is_refused_and_its_buffers_are_restored(n):
    torch.manual_seed(0)
    model = nn.Sequential(spectral_norm(nn.Linear(7, 9)), nn.Tanh(), nn.Linear(9, 3)).double()
    before = {name: b.clone() for name, b in model.named_buffers()}
    with pytest.raises(UnsupportedError, match=r"_u|_v"):
        norms(model, rows(n))
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())


def test_spectral_norm_in_training_is_refused_after_it_was_seen_in_evaluation():
    torch.manual_seed(0)
    model = nn.Sequential(spectral_norm(nn.Linear(7, 9)), nn.Tanh(), nn.Linear(9, 3)).double().eval()
    assert_exact(model, rows(5))
    model.train()
    before = {name: b.clone() for name, b in model.named_buffers()}
    with pytest.raises(UnsupportedError, match=r"_u|_v"):
        norms(model, rows(5))
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("seen", ["not seen", "seen in evaluation"])
def test_running_statistics_without_parameters_are_refused_and_restored(n, seen):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3, affine=False), nn.Flatten()).double()
    if seen != "not seen":
        model.eval()
        norms(model, rows(5, 2, 5))
        model.train()
    before = {name: b.clone() for name, b in model.named_buffers()}
    with pytest.raises(UnsupportedError):
        norms(model, rows(n, 2, 5))
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())


def test_a_layout_is_not_guessed_while_gradients_are_zero():
    # With a last layer of zeros, every layout fits; attention moves the examples to the second axis.
    model, batch = made(attention(3, True))
    batch = tuple(x[:3] for x in batch)
    with torch.no_grad():
        model.o.weight.zero_()
    assert_exact(model, batch)
    with torch.no_grad():
        model.o.weight.normal_()
    assert_exact(model, batch)


def test_a_layout_is_that_of_the_loss_at_hand():
    # T = B = 3: the same layer sees the examples first, then, by another loss, second.
    torch.manual_seed(0)
    model = nn.Linear(7, 4).double()
    batch = rows(3, 3, 7)

    def time_first(model: nn.Module, batch: Batch) -> Tensor:
        return batch[1] * model(batch[0].transpose(0, 1)).tanh().transpose(0, 1).flatten(1).square().sum(1)

    assert_exact(model, batch)
    assert_exact(model, batch, time_first)
    assert_exact(model, batch)


SELECTIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "mask": lambda m, x: x[x[..., 0] > 0],
    "masked_select": lambda m, x: x.masked_select((x[..., :1] > 0).expand_as(x)).view(-1, 7),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_places_picked_by_a_mask_are_exact_or_refused(name):
    # Each of the first three examples has two places picked, the others have one and three.
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


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("which", [0, 1, 2], ids=["ball", "per coordinate", "center"])
def test_norms_of_float32_are_those_of_float64(kind, which):
    def model() -> nn.Module:
        torch.manual_seed(0)
        if kind == "mlp":
            return nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 10))
        layers = [nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 144, 10))

    def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    torch.manual_seed(1)
    x = torch.rand(6, 784) if kind == "mlp" else torch.rand(6, 1, 28, 28)
    y = torch.randint(10, (6,))
    low, high = model(), model().double()
    geometry = geometries(low)[which]
    names = dict(zip(low.parameters(), high.parameters(), strict=True))
    wide = Geometry(
        None if geometry.center is None else {names[p]: c.double() for p, c in geometry.center.items()},
        {names[p]: s.double() if isinstance(s, Tensor) else s for p, s in geometry.scale.items()},
    )
    actual = Bookkeeping(low, cross_entropy, (x, y)).norms(geometry)
    expected = whitened_norms(one_by_one(high, (x.double(), y), cross_entropy), wide)
    assert float(((actual - expected) / expected).abs().max()) < 1e-6


@pytest.mark.parametrize("kind", ["linear", "gram", "conv", "pixel gram", "embedding"])
@pytest.mark.parametrize("full", [True, False], ids=["per coordinate", "scalar"])
def test_near_the_center_the_norm_of_float32_is_that_of_what_is_summed(kind, full):
    torch.manual_seed(0)
    x = torch.randn(3, 20, 150)
    if kind == "linear":
        model, x = nn.Sequential(nn.Linear(400, 300), nn.Tanh(), nn.Linear(300, 10)), torch.randn(3, 400)
    elif kind == "gram":
        model = nn.Sequential(nn.Linear(150, 160), nn.Tanh(), Pool(), nn.Linear(160, 10))
    elif kind == "conv":
        model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh()), torch.randn(3, 3, 9, 9)
    elif kind == "pixel gram":
        model, x = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.Tanh()), torch.randn(3, 64, 4, 4)
    else:
        model, x = nn.Sequential(nn.Embedding(50, 30), nn.Tanh()), torch.randint(50, (3, 12))
    batch = (x, torch.rand(3))
    params = list(model.parameters())
    alone = Bookkeeping(model, loss, batch).weighted_sum(torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    scale = {p: (0.5 + torch.rand_like(p)).detach() if full else 0.7 for p in params}
    for distance in (1.0, 0.3, 0.11, 0.09, 0.01, 0.001):
        center = {}
        for p in params:
            away = torch.randn_like(p).detach()
            center[p] = alone[p] + distance * away * alone[p].norm() / away.norm()
        norm = float(Bookkeeping(model, loss, batch).norms(Geometry(center, scale))[0])
        square = sum(
            float((((alone[p].double() - center[p].double()) / scale[p]) ** 2).sum()) for p in params
        )
        assert norm == pytest.approx(math.sqrt(square), rel=1e-5), distance


# --- c. refusals --------------------------------------------------------------------------------------


def refused(model: nn.Module, batch: Batch, *words: str, loss: Callable[..., Tensor] = loss) -> None:
    """Asserts a refusal by name, with a remedy, that leaves parameters and buffers as they were."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UnsupportedError) as caught:
        norms(model, batch, loss)
    message = str(caught.value)
    assert all(word in message for word in words), message
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), f"{name} was changed"


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_in_training_is_refused(n, affine):
    torch.manual_seed(0)
    layers = [nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3, affine=affine), nn.Flatten()]
    refused(nn.Sequential(*layers).double(), rows(n, 2, 5), "eval()")


def test_batch_norm_in_training_is_refused_by_name():
    torch.manual_seed(0)
    layers = [nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.Flatten()]
    refused(nn.Sequential(*layers).double(), rows(5, 2, 5), "1.weight", "GroupNorm")


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("option", [{"max_norm": 0.5}, {"scale_grad_by_freq": True}], ids=str)
def test_embeddings_that_depend_on_the_batch_are_refused(kind, option, n):
    torch.manual_seed(0)
    model = nn.Sequential(kind(20, 8, **option), nn.Tanh(), nn.Linear(8, 3)).double()
    refused(model, (tokens(n), torch.ones(n).double()), "0.weight", *option, "without")


def test_a_frozen_embedding_with_max_norm_is_refused():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 8, max_norm=0.5), nn.Tanh(), nn.Linear(8, 3)).double()
    model[0].weight.requires_grad_(False)
    refused(model, (tokens(), torch.ones(B).double()), "max_norm")


def test_dropout_between_fused_layers_is_refused_and_allowed_in_evaluation():
    model, batch = made(recurrent(nn.LSTM, num_layers=2, dropout=0.2))
    refused(model, batch, "r.weight_ih_l0", "nn.Dropout")
    model.eval()
    assert_exact(model, batch)


READS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "item": lambda m, x: m.l(x) * (1 + abs(x.sum().item())),
    "if": lambda m, x: m.l(x) if x.sum() > 0 else 2 * m.l(x),
    "if on hidden values": lambda m, x: m.l(x) if m.l(x).sum() > 0 else 2 * m.l(x),
    "float": lambda m, x: m.l(x) * float(x.max()),
    "tolist": lambda m, x: m.l(x) * x.tolist()[0][0],
    "equal": lambda m, x: m.l(x) * (1 if torch.equal(x, x.abs()) else 2),
    "allclose": lambda m, x: m.l(x) * (1 if torch.allclose(x, x.abs()) else 2),
    "is_nonzero": lambda m, x: m.l(x) * (1 if (x.sum() > 0).is_nonzero() else 2),
}


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("name", READS)
def test_reading_values_of_the_batch_is_refused(name, n):
    torch.manual_seed(0)
    model = Through(READS[name], l=nn.Linear(7, 3)).double()
    refused(model, rows(n), "engine='loop'")


def test_reading_a_value_that_mixes_only_later_is_refused():
    # The first three examples, alone and in any batch, take the same branch.
    torch.manual_seed(0)
    model = Through(READS["if"], l=nn.Linear(7, 3)).double()
    x, factor = rows(5)
    x[:3] = x[:3].abs()
    refused(model, (x, factor), "engine='loop'")


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize(
    "wrong",
    [lambda v: v.mean(), lambda v: v.unsqueeze(1), lambda v: v.detach()],
    ids=["mean", "(n, 1)", "detached"],
)
def test_losses_of_another_shape_are_refused(wrong, n):
    refused(mlp(), rows(n), "loss", loss=lambda model, batch: wrong(loss(model, batch)))


@pytest.mark.parametrize("length", [3, 4, 5])
def test_a_bare_parameter_beside_examples_on_the_second_axis_is_exact(length):
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.l(x.transpose(0, 1) + m.shift).tanh().transpose(0, 1)

    torch.manual_seed(0)
    for shape in ((7,), (length, 1, 7)):
        model = Through(forward, l=nn.Linear(7, 3), shift=param(*shape)).double()
        assert_exact(model, rows(5, length, 7))


def test_what_the_recorder_does_not_see_is_refused():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w * 2

        @staticmethod
        def backward(ctx: Any, e: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return 2 * e * w, (2 * e * x).sum(0)

    torch.manual_seed(0)
    model = Through(lambda m, x: Twice.apply(m.l(x), m.w), l=nn.Linear(7, 3), w=param(3)).double()
    refused(model, rows(5), "Twice", "engine='loop'")


# --- tied weights -------------------------------------------------------------------------------------


def test_a_tied_weight_takes_the_product_of_its_two_uses(monkeypatch):
    seen = []
    formula = norms_module._tied_squares
    monkeypatch.setattr(norms_module, "_tied_squares", lambda *args: seen.append(formula(*args)) or seen[-1])
    model, batch = made(CASES["tied embedding and head, gram"])
    norms = Bookkeeping(model, loss, batch).norms(ball(model))
    assert len(seen) == 1
    assert seen[0] is not None
    close(norms, whitened_norms(one_by_one(model, batch, loss), ball(model)))
