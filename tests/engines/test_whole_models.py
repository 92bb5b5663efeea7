"""The fast engine on whole models equals plain autograd, one example at a time.

The models are trained as usual: with dropout, with activation checkpointing, under autocast. Those of Hugging
Face need `transformers`, and their adapters `peft`.
"""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adamas.engines import ENGINES, Bookkeeping
from tests.support.one_by_one import (
    Gradients,
    ball,
    close,
    geometries,
    one_by_one,
    some_weights,
    summed,
    whitened_norms,
)
from tests.support.traces import hooks
from tests.support.whole_models import MODELS, made
from tests.support.whole_models.data import PADDING, B, Batch, Built, Loss
from tests.support.whole_models.hugging_face import gpt2_masked, visible

SEED = 11  # for the dropout masks

pytestmark = [
    pytest.mark.whole_models,
    pytest.mark.filterwarnings(
        "ignore:There is a performance drop:UserWarning",
        "ignore:enable_nested_tensor is True:UserWarning",
        "ignore:None of the inputs have requires_grad:UserWarning",  # in checkpoints, during the probe
        "ignore:TF32 acceleration on top of oneDNN:UserWarning",
    ),
]

# One test is enough for these: they are large, or differ from another model in one part.
ONCE = {"WRN-16-4", "WRN-16-4, standardised", "tied transformer, long", "GPT-2, eager, masked"}
MOST = [name for name in MODELS if name not in ONCE]
every_model = pytest.mark.parametrize("name", MODELS)
most_models = pytest.mark.parametrize("name", MOST)
both_kinds = pytest.mark.parametrize("reentrant", [False, True], ids=["not reentrant", "reentrant"])


# --- the reference ------------------------------------------------------------------------------------


def together(model: nn.Module, batch: Batch, loss: Loss) -> Gradients:
    """Differentiates each example's loss after one forward of the whole batch, with its dropout masks."""
    params = [p for p in model.parameters() if p.requires_grad]
    torch.manual_seed(SEED)
    losses = loss(model, batch)
    gradients = [
        torch.autograd.grad(value, params, retain_graph=True, materialize_grads=True) for value in losses
    ]
    return [dict(zip(params, each, strict=True)) for each in gradients]


def of_other(gradients: Gradients, model: nn.Module, other: nn.Module) -> Gradients:
    """Assigns the gradients of a model to the parameters of another one with the same architecture."""
    renamed = dict(zip(model.parameters(), other.parameters(), strict=True))
    return [{renamed[p]: g for p, g in each.items()} for each in gradients]


def assert_answers(built: Built, expected: Gradients, which: slice = slice(None)) -> None:
    """Compares the norms in some geometries, each from a new engine, and the weighted sum of each engine."""
    model, batch, loss = built
    weights = some_weights(B)
    total = summed(expected, weights)
    for geometry in geometries(model)[which]:
        torch.manual_seed(SEED)
        engine = Bookkeeping(model, loss, batch)
        close(engine.norms(geometry), whitened_norms(expected, geometry))
        sums = engine.weighted_sum(weights)
        assert set(sums) == set(total)
        for p, value in total.items():
            close(sums[p], value)


# --- exactness ----------------------------------------------------------------------------------------


@every_model
def test_exact(name):
    model, batch, loss = made(name)
    expected = one_by_one(model, batch, loss)
    for parameter, p in model.named_parameters():
        if p.requires_grad and not parameter.endswith("key.bias"):  # softmax is invariant to it
            assert any(each[p].abs().max() > 1e-4 for each in expected), (
                f"the gradient of {parameter} is zero"
            )
    assert_answers((model, batch, loss), expected)


@most_models
def test_loop_and_bookkeeping_agree_in_evaluation_mode(name):
    model, batch, loss = made(name, dropout=0.5)
    model.eval()
    geometry, weights = geometries(model)[1], some_weights(B)
    slow, fast = (ENGINES[engine](model, loss, batch) for engine in ("loop", "bookkeeping"))
    close(fast.norms(geometry), slow.norms(geometry))
    sums = slow.weighted_sum(weights)
    for p, value in fast.weighted_sum(weights).items():
        close(value, sums[p])


@most_models
def test_exact_with_dropout(name):
    model, batch, loss = made(name, dropout=0.3)
    expected = together(model, batch, loss)
    norms = whitened_norms(expected, ball(model))
    without = whitened_norms(together(model.eval(), batch, loss), ball(model))
    assert (norms / without - 1).abs().min() > 1e-4  # the masks change every example
    assert_answers((model.train(), batch, loss), expected, slice(1, 2))


@both_kinds
@most_models
def test_exact_with_dropout_in_a_checkpoint(name, reentrant):
    plain, batch, loss = made(name, dropout=0.3)
    model, _, _ = made(name, dropout=0.3, reentrant=reentrant)
    expected = of_other(together(plain, batch, loss), plain, model)
    assert_answers((model, batch, loss), expected, slice(1, 2))


@pytest.mark.parametrize("name", [*MOST, "WRN-16-4"])
def test_norms_and_sums_under_autocast_are_exact_to_bfloat16(name):
    model, batch, loss = made(name, torch.float32)

    def narrow(model: nn.Module, batch: Batch) -> Tensor:
        # Only some processors support bfloat16 in oneDNN's LSTM; all do in torch's own.
        own = torch.backends.mkldnn.flags(enabled=False) if name == "LSTM" else nullcontext()
        with own, torch.autocast("cpu", torch.bfloat16):
            return loss(model, batch).float()

    gradients = one_by_one(model, batch, narrow)
    engine = Bookkeeping(model, narrow, batch)
    expected = whitened_norms(gradients, ball(model))
    assert float((engine.norms(ball(model)) / expected - 1).abs().max()) < 0.03
    weights = some_weights(B)
    sums, total = engine.weighted_sum(weights), summed(gradients, weights)
    size = torch.stack([value.norm() for value in total.values()]).norm()
    error = torch.stack([(sums[p] - value).norm() for p, value in total.items()]).norm()
    assert float(error / size) < 0.05


@every_model
def test_float32_norms_are_those_of_the_summed_gradients(name):
    """This bounds the sensitivity of the clipped sum by 1 + 1e-6 in float32."""
    model, batch, loss = made(name, torch.float32)
    for geometry in geometries(model)[:2]:
        torch.manual_seed(SEED)
        engine = Bookkeeping(model, loss, batch)
        norms = engine.norms(geometry)
        for i in range(B):
            one = torch.zeros(B, dtype=torch.float64)
            one[i] = 1
            gradient = {p: g.double() for p, g in engine.weighted_sum(one).items()}
            expected = whitened_norms([gradient], geometry)
            assert float((norms[i] / expected - 1).abs()) < 1e-6


def bert_masked(model: Any, batch: Batch) -> Tensor:
    ids, types, targets = batch
    out = model(input_ids=ids, token_type_ids=types, attention_mask=(ids != PADDING).long())
    return F.cross_entropy(out.logits, targets, reduction="none")


def bert_without_types(model: Any, batch: Batch) -> Tensor:
    out = model(input_ids=batch[0], attention_mask=visible(batch[0], model.dtype))
    return F.cross_entropy(out.logits, batch[2], reduction="none")


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        # transformers reads the mask of the padding, and skips it if all words are present.
        ("BERT, eager", bert_masked),
        ("BERT, sdpa", bert_masked),
        ("BERT, LoRA", bert_masked),
        ("GPT-2, sdpa", gpt2_masked),
        # Without token types BERT looks up zeros of shape (n, T) that do not come from the batch.
        ("BERT, eager", bert_without_types),
        ("BERT, sdpa", bert_without_types),
    ],
)
def test_exact_with_the_usual_arguments_of_hugging_face_models(name, loss):
    model, batch, _ = made(name)
    assert_answers((model, batch, loss), one_by_one(model, batch, loss))


# --- the model afterwards -----------------------------------------------------------------------------


def assert_ordinary(model: nn.Module, other: nn.Module, batch: Batch, loss: Loss) -> None:
    """Asserts that a model equals an untouched copy bit for bit, and gets the same gradients."""
    assert hooks(model) == hooks(other)
    for a, b in zip(model.modules(), other.modules(), strict=True):
        assert type(a) is type(b)
        assert a.training == b.training
        assert vars(a).keys() == vars(b).keys()
    state, expected = model.state_dict(), other.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(value, expected[key]) for key, value in state.items())
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), other.buffers(), strict=True))
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert p.grad is None
        assert type(p) is type(q)
        assert p.requires_grad == q.requires_grad
        assert vars(p).keys() == vars(q).keys()
    for each in (model, other):
        torch.manual_seed(SEED)
        loss(each, batch).sum().backward()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        assert p.grad is None or torch.equal(p.grad, q.grad)


@both_kinds
@most_models
def test_exact_with_checkpointing(name, reentrant):
    plain, batch, loss = made(name)
    model, _, _ = made(name, reentrant=reentrant)
    expected = of_other(one_by_one(plain, batch, loss), plain, model)
    assert_answers((model, batch, loss), expected, slice(1, 2))
    assert_ordinary(model, made(name, reentrant=reentrant)[0], batch, loss)


@most_models
def test_the_model_stays_an_ordinary_module(name):
    model, batch, loss = made(name)
    engine = Bookkeeping(model, loss, batch)
    engine.norms(ball(model))
    engine.weighted_sum(some_weights(B))
    assert_ordinary(model, made(name)[0], batch, loss)
