"""A loss is chosen by class and configuration, and refuses batches and labels of the wrong kind."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from adamas.integrations import losses


def model_named(name, *, problem_type=None, num_labels=3, is_encoder_decoder=False):
    """Makes a linear model with the name of a class of `transformers`, and what its configuration says."""
    config = SimpleNamespace(
        problem_type=problem_type, num_labels=num_labels, is_encoder_decoder=is_encoder_decoder
    )
    return type(name, (nn.Linear,), {"config": config})(2, num_labels)


CHOICES = [
    ("XForSequenceClassification", {}, "classification"),
    ("XForSequenceClassification", {"num_labels": 1}, "regression"),
    ("XForSequenceClassification", {"problem_type": "regression"}, "regression"),
    ("XForSequenceClassification", {"problem_type": "multi_label_classification"}, "multi_label"),
    (
        "XForSequenceClassification",
        {"problem_type": "single_label_classification", "num_labels": 1},
        "classification",
    ),
    ("XForTokenClassification", {}, "token_classification"),
    ("XForMultipleChoice", {}, "classification"),
    ("XForMaskedLM", {}, "masked_lm"),
    ("XForCausalLM", {}, "causal_lm"),
    ("XLMHeadModel", {}, "causal_lm"),
    ("XForConditionalGeneration", {"is_encoder_decoder": True}, "seq2seq_lm"),
    ("XForQuestionAnswering", {}, "question_answering"),
]


@pytest.mark.parametrize(("name", "config", "loss"), CHOICES)
def test_the_class_and_its_configuration_choose(name, config, loss):
    assert losses.for_model(model_named(name, **config)) is losses.LOSSES[loss]


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("XModel", {}),
        ("XForPreTraining", {}),
        ("XWithLMHeadModel", {}),
        ("XForConditionalGeneration", {}),
        ("XForSequenceClassification", {"problem_type": "ranking"}),
    ],
)
def test_a_model_without_a_known_loss_is_refused_with_all_losses(name, config):
    with pytest.raises(TypeError, match=f"got {name}.*{', '.join(losses.LOSSES)}"):
        losses.for_model(model_named(name, **config))


def test_a_module_without_a_configuration_is_refused():
    with pytest.raises(TypeError, match=r"got Linear.*write loss\(model, batch\)"):
        losses.for_model(nn.Linear(2, 2))


def test_options_that_a_loss_does_not_have_are_refused():
    model = model_named("XForSequenceClassification", num_labels=1)
    with pytest.raises(ValueError, match=r"label_smoothing=0 for regression, got 0\.1"):
        losses.for_model(model, label_smoothing=0.1)
    with pytest.raises(ValueError, match=r"reduction='mean' for regression.*got 'sum'"):
        losses.for_model(model, reduction="sum")
    with pytest.raises(ValueError, match="reduction='max' to be 'mean' or 'sum'"):
        losses.for_model(model_named("XForCausalLM"), reduction="max")


def test_options_reach_the_loss():
    model = model_named("XForSequenceClassification")
    batch = {"input": torch.randn(4, 2), "labels": torch.tensor([0, 1, 2, -100])}
    loss = losses.for_model(model, label_smoothing=0.3)
    expected = F.cross_entropy(model(batch["input"]), batch["labels"], reduction="none", label_smoothing=0.3)
    torch.testing.assert_close(loss(model, batch), expected)


def test_one_target_may_come_as_a_vector_or_as_a_column():
    model = model_named("XForSequenceClassification", num_labels=1)
    x, y = torch.randn(4, 2), torch.randn(4)
    expected = (model(x)[:, 0] - y).square()
    for labels in (y, y[:, None]):
        torch.testing.assert_close(losses.regression(model, {"input": x, "labels": labels}), expected)


X = torch.zeros(4, 2)


@pytest.mark.parametrize(
    ("loss", "batch", "error", "message"),
    [
        ("classification", (X, X), TypeError, "dictionary of tensors, got tuple.*collator"),
        ("classification", {"input": X, "label": X}, ValueError, r"batch\['labels'\].*\['input', 'label'\]"),
        ("classification", {"input": X, "labels": [0] * 4}, ValueError, r"batch\['labels'\]"),
        ("classification", {"input": X, "labels": torch.zeros(4, 3)}, TypeError, "multi_label"),
        (
            "classification",
            {"input": [X], "labels": torch.zeros(4).long()},
            TypeError,
            r"batch\['input'\].*list",
        ),
        ("multi_label", {"input": X, "labels": torch.zeros(4)}, ValueError, "shape of the logits"),
        ("regression", {"input": X, "labels": torch.zeros(4, 2)}, ValueError, "shape of the logits"),
        ("regression", {"input": X, "labels": torch.zeros(4)}, ValueError, "shape of the logits"),
    ],
)
def test_a_batch_of_the_wrong_kind_is_refused(loss, batch, error, message):
    with pytest.raises(error, match=message):
        losses.LOSSES[loss](model_named("X"), batch)


def test_labels_of_another_length_than_the_logits_are_refused():
    batch = {"input": torch.zeros(4, 5, 2), "labels": torch.zeros(4, 6).long()}
    for name in ("token_classification", "masked_lm", "causal_lm"):
        with pytest.raises(ValueError, match="one label per token"):
            losses.LOSSES[name](model_named("X"), batch)
