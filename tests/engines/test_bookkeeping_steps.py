"""The fast engine from step to step: randomness, precision, batches and modes in turn, and no traces left."""

import builtins
import copy
import math
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adamas import Geometry, UnsupportedError
from adamas._numerics import sums_kernel as _sums_kernel
from adamas._numerics import threads as _threads
from adamas._numerics.compiled import numba
from adamas.engines import Bookkeeping
from tests.support.models_by_hand import (
    CASES,
    B,
    Through,
    attention,
    checkpointed,
    frozen,
    made,
    mlp,
    param,
    rows,
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
    some_weights,
    summed,
    whitened_norms,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:There is a performance drop:UserWarning",
    "ignore:Using padding='same' with even kernel:UserWarning",
    "ignore:None of the inputs have requires_grad:UserWarning",
    "ignore:enable_nested_tensor is True:UserWarning",
    "ignore:Converting a tensor with requires_grad=True to a scalar:UserWarning",
)


# --- d. randomness and precision ----------------------------------------------------------------------


def test_dropout_draws_one_mask_per_example_for_norm_and_sum():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(7, 16), nn.Dropout(0.5), nn.TransformerEncoderLayer(16, 2, 8, dropout=0.3, batch_first=True)
    ).double()
    batch = rows(5, 4, 7)
    built = Bookkeeping(model, loss, batch)
    taken = built.norms(ball(model))
    assert taken.unique().numel() == 5
    for i in range(5):
        sums = built.weighted_sum(torch.eye(5, dtype=torch.float64)[i])
        close(torch.stack([s.square().sum() for s in sums.values()]).sum().sqrt(), taken[i])


@pytest.mark.parametrize("reentrant", [False, True])
def test_dropout_in_a_checkpoint_has_the_masks_of_the_forward(reentrant):
    torch.manual_seed(0)
    middle = nn.Sequential(nn.Linear(9, 32), nn.Dropout(0.5), nn.Linear(32, 9))
    model, batch = made(lambda: checkpointed(reentrant, lambda: middle))
    for i in range(3):
        single = tuple(x[i : i + 1] for x in batch)
        norms(model, single)
        torch.manual_seed(5)
        built = Bookkeeping(model, loss, single)
        taken = built.norms(ball(model))
        sums = built.weighted_sum(torch.ones(1, dtype=torch.float64))
        close(torch.stack([s.square().sum() for s in sums.values()]).sum().sqrt(), taken[0])
        torch.manual_seed(5)
        plain = copy.deepcopy(model)
        loss(plain, single).sum().backward()
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            close(sums[p], q.grad)


@pytest.mark.parametrize("bias", [0.2, 0.5])
def test_dropout_of_a_weight_is_the_same_for_norm_and_sum(bias):
    torch.manual_seed(0)
    model = Through(lambda m, x: F.linear(x, F.dropout(m.w, bias, m.training)).tanh(), w=param(6, 7)).double()
    built = Bookkeeping(model, loss, rows(4))
    taken = built.norms(ball(model))
    for i in range(4):
        sums = built.weighted_sum(torch.eye(4, dtype=torch.float64)[i])
        close(sums[model.w].norm(), taken[i])


def autocast_loss(model: nn.Module, batch: Batch) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(batch[0])
    return batch[1] * out.float().flatten(1).square().sum(1)


AUTOCAST: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "layers": lambda: (
        nn.Sequential(
            *(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 9)),
            *(nn.LayerNorm(9), nn.Tanh(), nn.Linear(9, 3)),
        ),
        torch.randn(B, 3, 6, 6),
    ),
    "attention": attention(4, True),
    "weight_norm": CASES["weight_norm"],
    "weight_norm conv": CASES["weight_norm conv"],
    "adapters merged alone": lambda: (
        Through(lambda m, x: F.linear(x, m.b @ m.a).tanh(), a=param(2, 7), b=param(9, 2)),
        torch.randn(B, 4, 7),
    ),
    "bare": CASES["bare mul and add"],
    "einsum": CASES["einsum"],
    "embedding": CASES["tied embedding and head"],
    "prelu": CASES["prelu"],
}


@pytest.mark.parametrize("name", AUTOCAST)
def test_autocast_is_the_loop_of_autocast_within_bfloat16(name):
    model, (x, factor) = made(AUTOCAST[name])
    model, batch = model.float(), (x.float() if x.is_floating_point() else x, factor.float())
    gradients = one_by_one(model, batch, autocast_loss)
    built = Bookkeeping(model, autocast_loss, batch)
    expected = whitened_norms(gradients, ball(model))
    actual = built.norms(ball(model))
    assert actual.dtype == torch.float64
    assert float(((actual - expected) / expected).abs().max()) < 0.05
    weights = some_weights(B)
    sums = built.weighted_sum(weights)
    total = summed(gradients, weights)
    size = max(float(t.norm()) for t in total.values())
    for p, value in total.items():
        assert sums[p].dtype == torch.float32
        assert float((sums[p] - value).norm()) < 0.05 * size


@pytest.mark.parametrize(
    "name", ["mlp", "weight_norm", "weight_norm conv", "adapters merged into a frozen weight"]
)
def test_sums_of_bfloat16_models_are_kept_in_float32(name):
    model, (x, _) = made(CASES[name])
    model.bfloat16()
    # 400 copies of one example: bfloat16 sums would stop growing.
    x = x[:1].bfloat16().expand(400, *x.shape[1:]).clone()
    batch = (x, torch.ones(400, dtype=torch.bfloat16))
    built = Bookkeeping(model, loss, batch)
    built.norms(ball(model))
    many = built.weighted_sum(torch.ones(400, dtype=torch.float64))
    one = built.weighted_sum(torch.eye(400, dtype=torch.float64)[0])
    size = max(float(value.norm()) for value in one.values())
    for p, value in many.items():
        assert value.dtype == torch.float32
        assert float((value / 400 - one[p]).norm()) < 0.01 * size


# --- e. batches, calls and modes ----------------------------------------------------------------------

VARIED = [
    "mlp",
    "linear T chunks",
    "conv2d stride",
    "tied embedding and head",
    "layer_norm T",
    "ViT",
    "attention seq-first",
    "attention batch-first, T = 3",
    "LSTM, time-first, T = B",
    "weight standardisation, conv",
    "transposed conv2d",
    "bare with T = B",
    "addmm, flattened",
]


@pytest.mark.parametrize("name", VARIED)
@pytest.mark.parametrize("sizes", [(5, 0, 1, 2, 3, 4), (1, 5, 2), (2, 4, 1, 5), (4, 5, 3)], ids=str)
def test_batches_of_any_size_follow_each_other(name, sizes):
    model, batch = made(CASES[name])
    geometry = geometries(model)[1]
    for n in sizes:
        part = tuple(x[:n] for x in batch)
        built = Bookkeeping(model, loss, part)
        taken = built.norms(geometry)
        sums = built.weighted_sum(some_weights(n))
        if n == 0:
            assert taken.shape == (0,)
            assert not any(total.any() for total in sums.values())
            continue
        gradients = one_by_one(model, part)
        close(taken, whitened_norms(gradients, geometry))
        for p, total in summed(gradients, some_weights(n)).items():
            close(sums[p], total)


@pytest.mark.parametrize("lengths", [(4, 1, 2), (1, 4, 5), (5, 3, 5)], ids=str)
@pytest.mark.parametrize("flat", [False, True])
def test_sequences_of_any_length_follow_each_other(lengths, flat):
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.l(x.reshape(-1, 7) if flat else x).tanh()
        return m.o(h.view(len(x), -1, 9)).mean(1)

    torch.manual_seed(0)
    model = Through(forward, l=nn.Linear(7, 9), o=nn.Linear(9, 3)).double()
    for length in lengths:
        assert_exact(model, rows(5, length, 7))


def test_losses_alternate_on_one_model():
    torch.manual_seed(0)
    model = Through(lambda m, x: m.o(m.l(x).tanh()), l=nn.Linear(7, 9), o=nn.Linear(9, 4)).double()
    batch = rows(5, 4, 7)

    def hidden(model: nn.Module, batch: Batch) -> Tensor:
        return batch[1] * model.l(batch[0]).sin().flatten(1).sum(1)

    for _ in range(2):
        assert_exact(model, batch)
        assert_exact(model, batch, hidden)
        assert_exact(model, tuple(x[:2] for x in batch), hidden)


@pytest.mark.parametrize("first", [True, False])
def test_the_mode_changes_between_calls(first):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(7, 9),
        nn.Dropout(0.5),
        nn.LSTM(9, 8, num_layers=1, batch_first=True),
    ).double()
    model = Through(lambda m, x: m.s[2](m.s[1](m.s[0](x)))[0], s=model)
    for mode in (first, not first, first):
        model.train(mode)
        built = Bookkeeping(model, loss, rows(4, 3, 7))
        taken = built.norms(ball(model))
        alone = built.weighted_sum(torch.eye(4, dtype=torch.float64)[0])
        close(torch.stack([s.square().sum() for s in alone.values()]).sum().sqrt(), taken[0])
        if not mode:
            assert_exact(model, rows(4, 3, 7))


def test_two_models_do_not_meet():
    one, two = mlp(), nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 4)).double()
    for _ in range(2):
        assert_exact(one, rows(5))
        assert_exact(two, rows(4, 3, 7))


def test_freezing_changes_between_calls():
    model, batch = mlp(), rows(5)
    for name in ("0.weight", "none", "0.bias", "2.weight"):
        assert_exact(frozen(model, name), batch)


ORDERS = [*VARIED[:5], "used twice, T chunks and no T", "weight_norm", "conv2d pixel gram", "LSTM"]


@pytest.mark.parametrize("name", ORDERS)
def test_one_engine_answers_in_any_order(name):
    model, batch = made(CASES[name])
    gradients = one_by_one(model, batch)
    weights = some_weights(B)
    total = summed(gradients, weights)
    for sums_first in (False, True):
        built = Bookkeeping(model, loss, batch)
        for round in range(2):
            if sums_first or round:
                sums = built.weighted_sum(weights)
                for p, value in total.items():
                    close(sums[p], value)
            for geometry in (*geometries(model), *geometries(model, seed=9)):
                close(built.norms(geometry), whitened_norms(gradients, geometry))


@pytest.mark.parametrize(
    "name", ["mlp", "linear T chunks", "conv2d stride", "weight_norm", "used twice with T"]
)
def test_two_engines_of_one_model_live_at_the_same_time(name):
    model, batch = made(CASES[name])
    parts = [tuple(x[:3] for x in batch), tuple(x[2:] for x in batch)]
    engines = [Bookkeeping(model, loss, part) for part in parts]
    geometry, other = geometries(model)[1:]
    taken = [built.norms(geometry) for built in engines]
    for built, part, own in zip(engines, parts, taken, strict=True):
        gradients = one_by_one(model, part)
        close(own, whitened_norms(gradients, geometry))
        sums = built.weighted_sum(some_weights(3))
        for p, total in summed(gradients, some_weights(3)).items():
            close(sums[p], total)
        close(built.norms(other), whitened_norms(gradients, other))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["input", "loss"])
@pytest.mark.parametrize("i", [1, 4], ids=["probed", "not probed"])
@pytest.mark.parametrize(
    "name",
    [
        "conv2d stride",
        "conv2d pixel gram",
        "embedding",
        "layer_norm T",
        "linear T chunks",
        "linear T gram",
        "group_norm 2d",
        "weight_norm",
        "attention batch-first",
        "LSTM",
        "einsum",
        "ViT",
    ],
)
def test_an_example_that_is_not_finite_does_not_spoil_the_others(name, where, i, bad):
    model, (x, factor) = made(CASES[name])
    gradients = one_by_one(model, (x, factor))
    if where == "input" and x.is_floating_point():
        x[i].flatten()[0] = bad
    else:
        factor[i] = bad
    kept = [j for j in range(B) if j != i]
    weights = some_weights(B)
    weights[i] = 0
    for geometry in geometries(model):
        built = Bookkeeping(model, loss, (x, factor))
        taken = built.norms(geometry)
        assert not taken[i].isfinite()
        close(taken[kept], whitened_norms([gradients[j] for j in kept], geometry))
        sums = built.weighted_sum(weights)
        for p, total in summed(gradients, weights).items():
            close(sums[p], total)


# --- f. the model is left as it was -------------------------------------------------------------------


def traces(model: nn.Module) -> Any:
    hooks = [
        (name, kind, len(value))
        for name, module in model.named_modules()
        for kind, value in vars(module).items()
        if "hooks" in kind and isinstance(value, dict)
    ]
    own = [(p._backward_hooks, p._post_accumulate_grad_hooks, p._version, id(p)) for p in model.parameters()]
    modes = [(module.training, type(module), sorted(vars(module))) for module in model.modules()]
    return hooks, own, modes, list(model.state_dict()), [p.requires_grad for p in model.parameters()]


UNTOUCHED = [
    "ViT",
    "weight_norm",
    "orthogonal",
    "LSTM, 2 layers, bidirectional",
    "checkpoint",
    "tied embedding and head",
    "encoder layer, training=True, norm_first=False",
    "batch_norm with fixed statistics",
    "biases only",
]


@pytest.mark.parametrize("name", UNTOUCHED)
@pytest.mark.parametrize("gradients", [False, True], ids=["no gradients", "gradients"])
def test_the_model_is_left_as_it_was(name, gradients):
    model, batch = made(CASES[name])
    fresh = copy.deepcopy(model)
    marks = [torch.full_like(p, 7.0) if gradients and p.requires_grad else None for p in model.parameters()]
    for p, mark in zip(model.parameters(), marks, strict=True):
        p.grad = mark
    before = traces(model)
    built = Bookkeeping(model, loss, batch)
    for geometry in geometries(model):
        built.norms(geometry)
    built.weighted_sum(some_weights(B))
    assert traces(model) == before
    for p, q, mark in zip(model.parameters(), fresh.parameters(), marks, strict=True):
        assert torch.equal(p, q)
        assert p.grad is mark
        assert mark is None or bool((mark == 7).all())
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), fresh.buffers(), strict=True))

    model.zero_grad()
    for each in (model, fresh):
        loss(each, batch).sum().backward()
    for p, q in zip(model.parameters(), fresh.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        assert p.grad is None or torch.equal(p.grad, q.grad)


def test_a_refusal_leaves_gradients_and_the_generator_as_they_were():
    model, (x, factor) = mlp(), rows(5)
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    state = torch.get_rng_state()
    with pytest.raises(UnsupportedError):
        norms(model, (x, factor), lambda model, batch: loss(model, batch) - loss(model, batch).mean())
    assert all(bool((p.grad == 7).all()) for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.overrides._get_current_function_mode_stack()


def test_a_batch_that_wants_gradients_gets_none():
    model, (x, factor) = mlp(), rows(5)
    x.requires_grad_()
    norms(model, (x, factor))
    assert x.grad is None


def test_the_probe_draws_no_random_numbers_of_the_run():
    def taken(warm: bool) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(7, 9), nn.Dropout(0.5), nn.Linear(9, 3)).double()
        if warm:
            norms(model, rows(4))
        batch = rows(5)
        torch.manual_seed(3)
        return norms(model, batch)

    assert torch.equal(taken(False), taken(True))


def test_no_warnings_of_our_own():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("mlp", "conv2d stride", "LSTM", "attention batch-first", "weight_norm", "checkpoint"):
            assert_exact(*made(CASES[name]))


@pytest.mark.parametrize("threads", [1, 2])
def test_chunks_and_layer_norm_are_exact_on_any_number_of_threads(threads):
    """The number of threads decides the length of chunks and the kernel of layer norm."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2)).double()
    images = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh()).double()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_exact(model, (torch.randn(B, 7, 6).double(), torch.rand(B).double()))
        assert_exact(images, (torch.randn(B, 2, 5, 5).double(), torch.rand(B).double()))
    finally:
        torch.set_num_threads(before)


def test_threads_of_our_own_start_within_a_backward(monkeypatch):
    """Norms that are taken in the backward may be the first work of the thread pool."""
    torch.set_num_threads(2)
    _threads._workers.cache_clear()
    model = nn.Conv2d(3, 8, 3)
    x = torch.randn(50, 3, 8, 8)
    monkeypatch.setattr(_sums_kernel, "_LEAST_SHARE", 1)  # any number of values is worth a second thread
    geometry = Geometry({}, {p: torch.rand(p.shape) + 0.5 for p in model.parameters()})

    def squares(model, batch):
        return model(batch).square().flatten(1).sum(1)

    started = threading.active_count()
    norms = Bookkeeping(model, squares, x).norms(geometry)
    assert threading.active_count() > started
    torch.set_num_threads(1)
    torch.testing.assert_close(Bookkeeping(model, squares, x).norms(geometry), norms)


@pytest.mark.skipif(numba is None, reason="needs Numba")
def test_kernels_are_compiled_before_a_forward_exchanges_len(monkeypatch):
    """Numba would not recognise the exchanged `len`, and the kernels would be left unused."""
    plain, found = builtins.len, []
    compile_ = _sums_kernel._squares.compile

    def noted(signature):
        found.append(builtins.len is plain)
        return compile_(signature)

    monkeypatch.setattr(_sums_kernel._squares, "compile", noted)
    _sums_kernel.available.cache_clear()
    model = nn.Conv2d(3, 8, 3)
    geometry = Geometry({}, {p: torch.rand(p.shape) + 0.5 for p in model.parameters()})
    Bookkeeping(model, lambda model, x: model(x).square().flatten(1).sum(1), torch.randn(5, 3, 8, 8)).norms(
        geometry
    )
    assert found
    assert all(found)
    assert _sums_kernel.available()
