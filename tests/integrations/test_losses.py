"""Losses of each example equal the losses that models of `transformers` compute of one example alone."""

import pytest
import torch

from adamas import UnsupportedError, finetune
from adamas.engines import Bookkeeping, trainable_parameters
from adamas.integrations import losses
from tests.support.one_by_one import close, geometries, some_weights, summed, whitened_norms
from tests.support.tiny_transformers import MODELS, batch_for, example_of, made, transformers

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]

EXPECTED = {
    "classes": losses.classification,
    "choices": losses.classification,
    "number": losses.regression,
    "numbers": losses.regression,
    "labels": losses.multi_label,
    "tokens": losses.token_classification,
    "masked": losses.masked_lm,
    "words": losses.causal_lm,
    "texts": losses.seq2seq_lm,
    "answers": losses.question_answering,
}


def gradients_alone(model, batch, loss):
    """Differentiates the loss of each example alone, by plain autograd."""
    params = trainable_parameters(model).values()
    found = []
    for i in range(len(next(iter(batch.values())))):
        grads = torch.autograd.grad(loss(example_of(batch, i)), params, allow_unused=True)
        zipped = zip(params, grads, strict=True)
        found.append({p: torch.zeros_like(p) if g is None else g for p, g in zipped})
    return found


def assert_engine_agrees(model, batch, loss, expected):
    """Compares norms and sums of the fast engine with gradients of examples alone."""
    weights = some_weights(len(expected))
    for geometry in geometries(model)[:2]:
        engine = Bookkeeping(model, loss, batch)
        close(engine.norms(geometry), whitened_norms(expected, geometry))
        sums = engine.weighted_sum(weights)
        for p, value in summed(expected, weights).items():
            close(sums[p], value)


@pytest.mark.parametrize("name", MODELS)
def test_a_loss_is_the_models_own_loss_of_each_example(name):
    model, batch = made(name, torch.float64), batch_for(name)
    loss = losses.for_model(model)
    assert loss is EXPECTED[name.rpartition(" ")[2]]
    own = torch.stack([model(**example_of(batch, i)).loss for i in range(3)])
    # transformers computes cross entropies of float32 logits
    torch.testing.assert_close(loss(model, batch), own.to(torch.float64), rtol=1e-6, atol=1e-6)
    alone = gradients_alone(model, batch, lambda example: model(**example).loss)
    ours = gradients_alone(model, batch, lambda example: loss(model, example).sum())
    for a, b in zip(ours, alone, strict=True):
        for p, g in a.items():
            close(g, b[p], 1e-6)
    assert_engine_agrees(model, batch, loss, ours)


@pytest.mark.parametrize("kind", ["LoraConfig", "PromptTuningConfig", "PrefixTuningConfig", "IA3Config"])
def test_adapters_keep_the_loss_of_the_model_inside(kind):
    peft = pytest.importorskip("peft")
    more = {"num_virtual_tokens": 2} if "Tuning" in kind else {}
    config = getattr(peft, kind)(task_type="CAUSAL_LM", **more)
    model = peft.get_peft_model(made("gpt2 words"), config).double()
    batch = batch_for("gpt2 words")
    loss = losses.for_model(model)
    assert loss is losses.causal_lm
    own = torch.stack([model(**example_of(batch, i)).loss for i in range(3)])
    torch.testing.assert_close(loss(model, batch), own.to(torch.float64), rtol=1e-6, atol=1e-6)
    assert_engine_agrees(
        model, batch, loss, gradients_alone(model, batch, lambda example: loss(model, example).sum())
    )


@pytest.mark.parametrize("name", ["bert classes", "bert tokens", "gpt2 words", "bart texts"])
def test_label_smoothing_is_that_of_the_trainer(name):
    from transformers.trainer_pt_utils import LabelSmoother

    model, batch = made(name), batch_for(name)
    loss = losses.for_model(model, label_smoothing=0.2)
    smoother = LabelSmoother(epsilon=0.2)
    for i in range(3):
        example = example_of(batch, i)
        output = model(**example)
        own = smoother(output, example["labels"], shift_labels=name == "gpt2 words")
        torch.testing.assert_close(loss(model, example)[0], own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["bert tokens", "bert masked", "gpt2 words", "bart texts"])
def test_the_sum_is_the_mean_times_the_number_of_labels(name):
    model, batch = made(name), batch_for(name)
    shifted = batch["labels"][:, 1:] if name == "gpt2 words" else batch["labels"]
    mean, total = (losses.for_model(model, reduction=way)(model, batch) for way in ("mean", "sum"))
    torch.testing.assert_close(total, mean * (shifted != -100).sum(1))


@pytest.mark.parametrize("name", ["bert classes", "bert tokens", "bert masked", "gpt2 words", "bart texts"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_an_example_without_labels_has_loss_and_gradient_zero(name, smoothing):
    model, batch = made(name), batch_for(name)
    batch["labels"][1] = -100
    loss = losses.for_model(model, label_smoothing=smoothing)
    values = loss(model, batch)
    assert values[1] == 0
    assert values[[0, 2]].min() > 0
    norms = Bookkeeping(model, loss, batch).norms(geometries(model)[0])
    assert norms[1] < 1e-12
    assert norms[[0, 2]].min() > 0


@pytest.mark.parametrize("name", ["bert classes", "bert tokens", "bert masked", "gpt2 words", "bart texts"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("label", [7777, -1])
def test_a_label_outside_the_classes_counts_as_little_as_none(name, smoothing, label):
    model, batch = made(name), batch_for(name)
    loss = losses.for_model(model, label_smoothing=smoothing)
    wrong, none = (batch | {"labels": batch["labels"].clone()} for _ in range(2))
    place = tuple((batch["labels"] != -100).nonzero()[1 if batch["labels"].dim() == 1 else -1])
    wrong["labels"][place], none["labels"][place] = label, -100
    torch.testing.assert_close(loss(model, wrong), loss(model, none), rtol=0, atol=0)
    assert loss(model, wrong)[place[0]] != loss(model, batch)[place[0]]
    norms = [Bookkeeping(model, loss, one).norms(geometries(model)[0]) for one in (wrong, none)]
    torch.testing.assert_close(*norms, rtol=0, atol=0)


def test_an_answer_beyond_the_text_does_not_count():
    model, batch = made("bert answers"), batch_for("bert answers")
    whole = losses.question_answering(model, batch)
    batch["end_positions"][:] = 99
    first = losses.question_answering(model, batch)
    batch["start_positions"][1] = 99
    assert (first < whole).all()
    assert losses.question_answering(model, batch)[1] == 0


def test_targets_never_reach_the_model():
    model, batch = made("bert classes"), batch_for("bert classes")
    seen = []
    model.register_forward_pre_hook(lambda _, args, kwargs: seen.append(set(kwargs)), with_kwargs=True)
    losses.classification(model, batch)
    assert seen == [{"input_ids", "attention_mask"}]


@pytest.mark.parametrize("name", ["t5 texts", "gpt2 words"])
def test_no_cache_of_keys_is_kept_in_training(name):
    """T5 reads values to make one, which the fast engine cannot follow where texts have padding."""
    model, batch = made(name), batch_for(name)
    assert model.config.use_cache
    seen = []
    model.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    losses.for_model(model)(model, batch)
    assert seen[0]["use_cache"] is False


def test_a_batch_encoding_is_a_batch():
    model, batch = made("bert classes"), batch_for("bert classes")
    expected = losses.classification(model, batch)
    torch.testing.assert_close(losses.classification(model, transformers.BatchEncoding(batch)), expected)


def test_logits_of_16_bits_are_widened():
    model, batch = made("gpt2 words", torch.bfloat16), batch_for("gpt2 words")
    assert losses.causal_lm(model, batch).dtype == torch.float32


def test_a_part_of_the_model_can_be_trained():
    model, batch = made("bert classes", torch.float64), batch_for("bert classes")
    finetune.head(model)
    loss = losses.for_model(model)
    assert_engine_agrees(
        model, batch, loss, gradients_alone(model, batch, lambda example: loss(model, example).sum())
    )


def test_the_models_own_loss_is_refused_with_the_name_of_the_remedy():
    model, batch = made("bert classes"), batch_for("bert classes")
    with pytest.raises(UnsupportedError, match=r"adamas\.integrations\.losses\.for_model\(model\)"):
        Bookkeeping(model, lambda model, batch: model(**batch).loss, batch).norms(geometries(model)[0])
