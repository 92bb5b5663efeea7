"""One record moves the sum by at most 1: known ways to break this promise, through the public interface.

A run has sampling rate 1 and its noise is silenced; one record is removed, and the whitened sums are
compared.
A loss whose influence cannot be bounded must be refused, with the reason.
"""

import contextlib
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, TensorDataset

import adamas
from adamas import Geometry, UnsupportedError, rules
from adamas.check.replay import Silent, joined, release_of, whitened_sums
from adamas.engines import ENGINES, Bookkeeping, Loop
from adamas.errors import SlowEngineWarning
from adamas.run.loop import PrivateRun
from tests.support.through import Through

N = 24
LIMIT = 1 + 1e-5  # float32

Forward = Callable[[Any, Tensor], Tensor]


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def data(*size: int, classes: int = 3, n: int = N, seed: int = 0) -> TensorDataset:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *size, generator=draw)
    return TensorDataset(x, torch.randint(0, classes, (n,), generator=draw))


def made(model: nn.Module, dataset: Dataset[Any], loss: Any = cross_entropy, **options: Any) -> PrivateRun:
    options = {"noise_multiplier": 1.0, "clip_norm": 0.05, "engine": "bookkeeping", "steps": 9} | options
    run = adamas.make_private(
        model,
        rules.SGD(model.parameters(), lr=0.1),
        dataset,
        loss,
        batch_size=len(dataset),  # type: ignore[arg-type]
        delta=1e-9,
        accountant="rdp",
        seed=0,
        progress=False,
        **options,
    )
    return run._replaced(noise=Silent(run.noise.seed))


def influence(run: PrivateRun, record: int, others: int = N) -> float:
    """Returns how far a record moves the whitened sum over all records."""
    geometry = run.geometry()
    rest = [i for i in range(others) if i != record]
    sums = [
        joined(whitened_sums(run, release_of(run, rows, run.steps_done), geometry))
        for rows in ([*rest, record], rest)
    ]
    return float((sums[0] - sums[1]).norm())


# --- what mixes only in larger batches, or by values --------------------------------------------------


def sorted_by_length(m: Any, x: Tensor) -> Tensor:
    """Sorts the rows, runs a layer that looks at neighbours, and sorts back."""
    order = x[:, 0].argsort()
    h = m.first(x[order]).tanh()
    h = torch.cat([h[:1], h[1:] + h[:-1]])
    return m.second(h[order.argsort()])


def statistics_from_eight_on(m: Any, x: Tensor) -> Tensor:
    h = m.first(x)
    return m.second((h - h.mean(0) if len(h) >= 8 else h).tanh())


def statistics_of_many(m: Any, x: Tensor) -> Tensor:
    """The same without asking for the number of examples."""
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


def layers() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"first": nn.Linear(5, 8), "second": nn.Linear(8, 3)}


@pytest.mark.parametrize("name", MIXING)
def test_a_model_that_mixes_its_examples_is_refused_with_the_line(name):
    with pytest.raises(UnsupportedError, match=r"test_promise\.py:\d+"):
        made(Through(MIXING[name], **layers()), data(5))


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
def test_a_loss_that_mixes_its_examples_is_refused(loss):
    with pytest.raises(UnsupportedError, match=r"test_promise\.py:\d+"):
        made(nn.Linear(5, 3), data(5), loss)


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_a_number_of_examples_on_the_right_of_a_float_is_refused(engine):
    # A float on the left reads the value of an integer without calling it.
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model, batch) * (1.0 / len(batch[0]))

    text = r"test_promise\.py:\d+" if engine == "bookkeeping" else "alone in its batch"
    with pytest.raises(UnsupportedError, match=text):
        made(nn.Linear(5, 3), data(5), loss, engine=engine)


@pytest.mark.parametrize("loss", [cross_entropy, over_the_length], ids=lambda f: f.__name__)
def test_what_is_computed_one_by_one_is_bounded_whatever_the_loss(loss):
    # Of one example the length is 1: the slow engine gives the loss that meaning, and keeps the promise.
    run = made(nn.Linear(5, 3), data(5))._replaced(loss=loss, engine="loop")
    assert max(influence(run, record) for record in range(4)) <= LIMIT


# --- the backward -------------------------------------------------------------------------------------


class Shared(torch.autograd.Function):
    """An identity whose backward divides by a norm over the batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, e: Tensor) -> Tensor:
        return e / e.norm()


class Doubled(torch.autograd.Function):
    """A function whose own backward keeps examples apart."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 2 * x.tanh()

    @staticmethod
    def backward(ctx: Any, e: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * e * (1 - x.tanh().square())


def hooked(m: Any, x: Tensor) -> Tensor:
    h = m.first(x)
    h.register_hook(lambda g: g / g.norm())
    return m.second(h.tanh())


def node_hooked(m: Any, x: Tensor) -> Tensor:
    h = m.first(x).tanh()
    h.grad_fn.register_prehook(lambda gradients: tuple(g / g.norm() for g in gradients))
    return m.second(h)


def custom(function: Any) -> Forward:
    return lambda m, x: m.second(function.apply(m.first(x)))


def checkpointed(function: Any) -> Forward:
    return lambda m, x: m.second(checkpoint(lambda h: function.apply(m.first(h)), x, use_reentrant=False))


BACKWARDS: dict[str, Forward] = {
    "a hook of a tensor": hooked,
    "a hook of a node": node_hooked,
    "a custom function": custom(Shared),
    "a custom function in a checkpoint": checkpointed(Shared),
}


@pytest.mark.parametrize("name", BACKWARDS)
def test_a_backward_that_mixes_gradients_is_refused(name):
    with pytest.raises(UnsupportedError):
        made(Through(BACKWARDS[name], **layers()), data(5))


def test_a_full_backward_hook_of_a_module_is_refused():
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    model[1].register_full_backward_hook(lambda module, inner, outer: (inner[0] / inner[0].norm(),))
    with pytest.raises(UnsupportedError):
        made(model, data(5))


def test_a_custom_function_whose_backward_keeps_examples_apart_is_exact():
    model = Through(custom(Doubled), **layers()).double()
    batch = tuple(t.double() if t.is_floating_point() else t for t in data(5).tensors)
    ball = Geometry.ball(model.parameters())
    fast, slow = (engine(model, cross_entropy, batch).norms(ball) for engine in (Bookkeeping, Loop))
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=0)


def test_a_captured_apply_is_refused():
    apply = Shared.apply  # bound before the forward is followed
    with pytest.raises(UnsupportedError, match="Shared"):
        made(Through(lambda m, x: m.second(apply(m.first(x))), **layers()), data(5))


# --- leaves, layouts, rows without a gradient ---------------------------------------------------------


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_a_parameter_of_the_loss_is_refused_and_gets_no_gradient(engine):
    margin = nn.Parameter(torch.ones(3))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]) * margin, batch[1], reduction="none")

    with pytest.raises(UnsupportedError, match="not a trainable parameter of the model"):
        made(nn.Linear(5, 3), data(5), loss, engine=engine)
    assert margin.grad is None


@pytest.mark.parametrize("engine", ENGINES)
def test_another_leaf_of_the_loss_gets_no_gradient(engine):
    scale = torch.ones(3, requires_grad=True)
    model, batch = nn.Linear(5, 3), data(5).tensors

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]) * scale, batch[1], reduction="none")

    with contextlib.suppress(UnsupportedError):
        ENGINES[engine](model, loss, batch).norms(Geometry.ball(model.parameters()))
    assert scale.grad is None


def test_layouts_are_not_guessed_where_several_fit():
    # Time first, as many places as examples. Of lengths 1, 2, 3 the last places are on both axes' diagonal.
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


def test_first_rows_without_a_gradient_do_not_matter():
    dataset = data(5)
    weights = torch.zeros(N)
    weights[-5:] = 1.0
    rows = TensorDataset(*dataset.tensors, weights)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model, batch) * batch[2]

    run = made(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)), rows, loss)
    assert influence(run, N - 1) <= LIMIT
    assert influence(run, 0) == 0.0


# --- reads --------------------------------------------------------------------------------------------

READS: dict[str, Callable[[Tensor], Any]] = {
    "where": lambda x: torch.where(x[:, 0] > 0)[0].shape[0] > 12,
    "nonzero": lambda x: len((x[:, 0] > 0).nonzero()) > 12,
    "unique_consecutive": lambda x: torch.unique_consecutive(x[:, 0].round()).max() > 1,
    "bincount": lambda x: torch.bincount((x[:, 0] > 0).long())[0] > 12,
    "repeat_interleave": lambda x: torch.repeat_interleave((x[:, 0] > 0).long()).numel() > 12,
    "in": lambda x: 2.0 in x,
    "str": lambda x: "nan" in str(x),
    "to_sparse": lambda x: x.relu().to_sparse()._nnz() > 12,
    "storage": lambda x: x.untyped_storage()[0] > 1,
    "dlpack": lambda x: torch.from_dlpack(x.__dlpack__()).sum() > 0,
    "numpy": lambda x: x.numpy().sum() > 0,
    "sum": lambda x: x.sum() > 0,
    "sorted": lambda x: sorted(x[:, 0])[0] > 0,
    "any row": lambda x: any(row.sum() > 9 for row in x),
}


@pytest.mark.parametrize("name", READS)
def test_reading_values_of_the_batch_is_refused(name):
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.second(m.first(x) * (2.0 if READS[name](x) else 1.0))

    model = Through(forward, **layers())
    batch = data(5).tensors
    with pytest.raises((UnsupportedError, TypeError, RuntimeError)) as error:
        Bookkeeping(model, cross_entropy, batch).norms(Geometry.ball(model.parameters()))
    assert error.type is UnsupportedError


# --- values that are not followed ---------------------------------------------------------------------


def kept_from_before(m: Any, x: Tensor) -> Tensor:
    h = m.first(x)
    last, m.__dict__["kept"] = m.__dict__.get("kept"), [h.detach().clone()]
    return m.second(h if last is None or last[0].shape != h.shape else h + last[0])


def centered(x: Tensor) -> Tensor:
    return x - x.mean(0)


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    scripted = torch.jit.script(centered)


UNSEEN: dict[str, Forward] = {
    "a tensor of an earlier step": kept_from_before,
    "TorchScript": lambda m, x: m.second(m.first(scripted(x))),
    "vmap over the features": lambda m, x: m.second(m.first(torch.vmap(lambda c: c - c.mean(), 1, 1)(x))),
    "the position in the batch": lambda m, x: m.second(m.first(x) + torch.arange(x.shape[0])[:, None]),
    "ranks": lambda m, x: m.second(m.first(x) * x[:, 0].argsort().argsort()[:, None]),
    "out=": lambda m, x: m.second(m.first(torch.sub(x, x.mean(0), out=torch.empty_like(x)))),
    "set_": lambda m, x: m.second(m.first(torch.empty(0).set_(x.flip(0)))),
    "a buffer of the batch's length": lambda m, x: m.second(m.first(x * torch.eye(x.shape[0], 5))),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_values_that_are_not_followed_are_refused(name):
    model = Through(UNSEEN[name], **layers())
    batch = data(5).tensors
    ball = Geometry.ball(model.parameters())
    engines = [Bookkeeping(model, cross_entropy, batch) for _ in range(2)]
    with pytest.raises(UnsupportedError):
        [engine.norms(ball) for engine in engines]


# --- padding ------------------------------------------------------------------------------------------


class Sequences(Dataset[Any]):
    """Sequences of different lengths."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        draw = torch.Generator().manual_seed(i)
        return torch.randn(1 + i % 5, 4, generator=draw), i % 3


def padded(examples: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
    x = nn.utils.rnn.pad_sequence([x for x, _ in examples], batch_first=True)
    lengths = torch.tensor([len(x) for x, _ in examples])
    return {"x": x, "lengths": lengths, "y": torch.tensor([y for _, y in examples])}


def padded_to_one_length(examples: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
    batch = padded(examples)
    return batch | {"x": F.pad(batch["x"], (0, 0, 0, 5 - batch["x"].shape[1]))}


def mean_over_all(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch["x"]).mean(1), batch["y"], reduction="none")


def mean_over_its_own(model: nn.Module, batch: Any) -> Tensor:
    h = model(batch["x"])
    mask = torch.arange(h.shape[1]) < batch["lengths"][:, None]
    mean = (h * mask[..., None]).sum(1) / batch["lengths"][:, None]
    return F.cross_entropy(mean, batch["y"], reduction="none")


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_a_loss_that_depends_on_the_longest_example_is_refused(engine):
    with pytest.raises(UnsupportedError, match="padded"):
        made(nn.Linear(4, 3), Sequences(), mean_over_all, collate_fn=padded, engine=engine)


@pytest.mark.parametrize(
    ("loss", "collate"), [(mean_over_its_own, padded), (mean_over_all, padded_to_one_length)]
)
def test_padding_that_nobody_looks_at_is_bounded(loss, collate):
    run = made(nn.Linear(4, 3), Sequences(), loss, collate_fn=collate)
    assert max(influence(run, record) for record in (3, 4, 9)) <= LIMIT


# --- what is told -------------------------------------------------------------------------------------


def test_auto_tells_once_why_it_is_not_the_fast_engine():
    with pytest.warns(SlowEngineWarning, match=r"takes 'vmap'.*Shared|takes 'loop'.*Shared") as seen:
        run = made(Through(custom(Shared), **layers()), data(5), engine="auto")
    assert len(seen) == 1
    assert run.engine != "bookkeeping"
    assert "Shared" in (run.explain().refusal or "")


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_checkpoints_are_exact_on_every_engine(engine, reentrant):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()

    def loss(model: Any, batch: Any) -> Tensor:
        out = checkpoint(model[1:], model[0](batch[0]), use_reentrant=reentrant)
        return F.cross_entropy(out, batch[1], reduction="none")

    batch = tuple(t.double() if t.is_floating_point() else t for t in data(5).tensors)
    ball = Geometry.ball(plain.parameters())
    found = ENGINES[engine](plain, loss, batch)
    expected = Loop(plain, cross_entropy, batch)
    torch.testing.assert_close(found.norms(ball), expected.norms(ball), rtol=1e-12, atol=0)
    weights = torch.linspace(0, 1, N, dtype=torch.float64)
    for p, total in found.weighted_sum(weights).items():
        torch.testing.assert_close(total, expected.weighted_sum(weights)[p], rtol=1e-10, atol=1e-12)
        assert p.grad is None


def test_a_sound_run_is_bounded_and_reaches_the_bound():
    run = made(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)), data(5))
    moved = [influence(run, record) for record in range(N)]
    assert max(moved) <= LIMIT
    assert math.isclose(max(moved), 1.0, rel_tol=1e-5)
