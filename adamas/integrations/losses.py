"""Per-example losses for models of Hugging Face `transformers`, and for `peft` models around them.

A model's own `loss` averages over the batch. Each function here takes the model's logits and returns one loss
per example, as `adamas.make_private` expects. For a batch of one example it equals the model's own loss.
`for_model` chooses the function for a model.

A batch is a dictionary of tensors, as the collators of `transformers` make it. Labels of -100, and labels
outside the model's classes, are ignored: an error at the step that draws such an example would reveal that it
was drawn. So check labels before training. An example without any other label has loss 0 and gradient 0.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adamas.engines import Loss
from adamas.integrations._outputs import (
    class_indices,
    inner_model,
    logits_of,
    output_of,
    part_of,
    same_shape,
    wide,
)

__all__ = [
    "LOSSES",
    "causal_lm",
    "classification",
    "for_model",
    "masked_lm",
    "multi_label",
    "question_answering",
    "regression",
    "seq2seq_lm",
    "token_classification",
]

IGNORED = -100  # the label of what does not count, in transformers and in torch


def classification(model: nn.Module, batch: Any, *, label_smoothing: float = 0.0) -> Tensor:
    """Computes the cross entropy of each example, whose label is the index of a class.

    For sequences, images, videos, sounds and multiple choice.

    Args:
        model: Its output has logits of shape `(n, classes)`.
        batch: The inputs of the model, and labels of shape `(n,)`.
        label_smoothing: Share of the uniform distribution in the target, from 0 to 1.

    Example:
        >>> import torch
        >>> model = nn.Linear(2, 4)  # stands for a model of transformers, whose input has another name
        >>> batch = {"input": torch.zeros(3, 2), "labels": torch.tensor([0, 1, -100])}
        >>> for p in model.parameters():
        ...     _ = nn.init.zeros_(p)
        >>> [round(value, 4) for value in classification(model, batch).tolist()]  # log(4), and no label
        [1.3863, 1.3863, 0.0]
    """
    labels = class_indices(batch, "classification").flatten()
    logits = logits_of(model, batch)
    labels = _known(labels.to(logits.device), logits.shape[-1])
    return F.cross_entropy(
        logits, labels, ignore_index=IGNORED, reduction="none", label_smoothing=label_smoothing
    )


def multi_label(model: nn.Module, batch: Any) -> Tensor:
    """Computes the binary cross entropy of each example, averaged over the classes.

    Args:
        model: Its output has logits of shape `(n, classes)`.
        batch: The inputs of the model, and labels of the same shape: 1 for each class that applies, else 0.
    """
    logits = logits_of(model, batch)
    labels = same_shape(part_of(batch, "labels").to(logits), logits)
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").flatten(1).mean(1)


def regression(model: nn.Module, batch: Any) -> Tensor:
    """Computes the squared error of each example, averaged over its targets.

    Args:
        model: Its output has logits of shape `(n, targets)`.
        batch: The inputs of the model, and labels of the same shape, or `(n,)` for one target.
    """
    logits = logits_of(model, batch)
    labels = part_of(batch, "labels").to(logits)
    if logits.shape[1:] == (1,) and labels.dim() == 1:
        labels = labels.unsqueeze(1)
    return F.mse_loss(logits, same_shape(labels, logits), reduction="none").flatten(1).mean(1)


def token_classification(
    model: nn.Module, batch: Any, *, reduction: str = "mean", label_smoothing: float = 0.0
) -> Tensor:
    """Computes the cross entropy of each example over its labelled tokens.

    Args:
        model: Its output has logits of shape `(n, tokens, classes)`.
        batch: The inputs of the model, and labels of shape `(n, tokens)`.
        reduction: "mean" divides by the example's own number of labelled tokens; "sum" does not divide.
        label_smoothing: Share of the uniform distribution in the target, from 0 to 1.
    """
    labels = class_indices(batch, "token_classification")
    return _over_tokens(logits_of(model, batch), labels, reduction, label_smoothing)


def masked_lm(
    model: nn.Module, batch: Any, *, reduction: str = "mean", label_smoothing: float = 0.0
) -> Tensor:
    """Computes the cross entropy of each example over its masked tokens, those with a label.

    `DataCollatorForLanguageModeling` draws the mask token by token, like dropout. Arguments as for
    `token_classification`.
    """
    labels = class_indices(batch, "masked_lm")
    return _over_tokens(logits_of(model, batch), labels, reduction, label_smoothing)


def causal_lm(
    model: nn.Module, batch: Any, *, reduction: str = "mean", label_smoothing: float = 0.0
) -> Tensor:
    """Computes the cross entropy of each example's next tokens: each token predicts the one after it.

    Arguments as for `token_classification`. Labels are the tokens themselves, as the collators make them.
    Tokens that `peft` puts before the text have no label.
    """
    labels = class_indices(batch, "causal_lm")
    logits = logits_of(model, batch)
    before = logits.shape[1] - labels.shape[1]  # tokens of prompt tuning
    labels = F.pad(labels, (max(0, before), 1), value=IGNORED)[:, 1:]
    return _over_tokens(logits, labels, reduction, label_smoothing)


def seq2seq_lm(
    model: nn.Module, batch: Any, *, reduction: str = "mean", label_smoothing: float = 0.0
) -> Tensor:
    """Computes the cross entropy of each example over the tokens of its target text.

    Arguments as for `token_classification`. Without `decoder_input_ids` in the batch, the model makes them
    from the labels.
    """
    labels, more = class_indices(batch, "seq2seq_lm"), {}
    if "decoder_input_ids" not in batch and "decoder_inputs_embeds" not in batch:
        inner = inner_model(model)
        labels = _known(labels, inner.config.get_text_config(decoder=True).vocab_size)
        more["decoder_input_ids"] = inner.prepare_decoder_input_ids_from_labels(labels=labels)
    return _over_tokens(logits_of(model, batch, more), labels, reduction, label_smoothing)


def question_answering(model: nn.Module, batch: Any) -> Tensor:
    """Computes the mean of the cross entropies of the first and the last token of each example's answer.

    Args:
        model: Its output has `start_logits` and `end_logits` of shape `(n, tokens)`.
        batch: The inputs of the model, and `start_positions` and `end_positions` of shape `(n,)`. A position
            beyond the text does not count.
    """
    output = output_of(model, batch, {})
    parts = []
    for name in ("start", "end"):
        logits = getattr(output, f"{name}_logits")
        tokens = logits.shape[1]
        places = part_of(batch, f"{name}_positions").flatten().to(logits.device).clamp(0, tokens)
        parts.append(F.cross_entropy(wide(logits), places, ignore_index=tokens, reduction="none"))
    return (parts[0] + parts[1]) / 2


LOSSES: dict[str, Callable[..., Tensor]] = {
    "classification": classification,
    "multi_label": multi_label,
    "regression": regression,
    "token_classification": token_classification,
    "masked_lm": masked_lm,
    "causal_lm": causal_lm,
    "seq2seq_lm": seq2seq_lm,
    "question_answering": question_answering,
}
"""All losses of this module, by name."""

_OF_TOKENS = (token_classification, masked_lm, causal_lm, seq2seq_lm)

_BY_ENDING = {
    "ForImageClassification": classification,
    "ForVideoClassification": classification,
    "ForAudioClassification": classification,
    "ForMultipleChoice": classification,
    "ForTokenClassification": token_classification,
    "ForMaskedLM": masked_lm,
    "ForCausalLM": causal_lm,
    "LMHeadModel": causal_lm,
    "ForQuestionAnswering": question_answering,
}
_BY_PROBLEM = {
    "single_label_classification": classification,
    "multi_label_classification": multi_label,
    "regression": regression,
}


def for_model(model: nn.Module, *, label_smoothing: float = 0.0, reduction: str = "mean") -> Loss:
    """Chooses the per-example loss for a model of `transformers`, by its class and its configuration.

    Args:
        model: The model, also with adapters of `peft`.
        label_smoothing: Share of the uniform distribution in the target, for losses of classes and tokens.
        reduction: "mean" or "sum" over the tokens of an example, for losses of tokens.

    Returns:
        A loss for `adamas.make_private`.

    Raises:
        TypeError: If the model has no loss here. Take one of `LOSSES`, or write `loss(model, batch)`.

    Example:
        >>> from types import SimpleNamespace
        >>> class TinyForSequenceClassification(nn.Linear):  # stands for a model of transformers
        ...     config = SimpleNamespace(problem_type=None, num_labels=1)
        >>> for_model(TinyForSequenceClassification(2, 1)).__name__
        'regression'
    """
    loss = _chosen(inner_model(model))
    if loss is None:
        raise TypeError(
            f"Expected a model whose class tells its loss, such as ...ForSequenceClassification, got "
            f"{type(inner_model(model)).__name__}. Take one of adamas.integrations.losses "
            f"({', '.join(LOSSES)}), or write loss(model, batch) with one loss per example."
        )
    options: dict[str, Any] = {}
    if reduction != "mean":
        if loss not in _OF_TOKENS:
            raise ValueError(
                f"Expected reduction='mean' for {loss.__name__}, which has no tokens, got {reduction!r}."
            )
        options["reduction"] = _one_of_reductions(reduction)
    if label_smoothing:
        if loss is not classification and loss not in _OF_TOKENS:
            raise ValueError(f"Expected label_smoothing=0 for {loss.__name__}, got {label_smoothing!r}.")
        options["label_smoothing"] = label_smoothing
    return partial(loss, **options) if options else loss


def _chosen(model: Any) -> Callable[..., Tensor] | None:
    name, config = type(model).__name__, getattr(model, "config", None)
    if config is None or name.endswith("WithLMHeadModel"):  # XLM and Flaubert, whose labels are not shifted
        return None
    if name.endswith("ForSequenceClassification"):
        problem = config.problem_type or ("regression" if config.num_labels == 1 else None)
        return _BY_PROBLEM.get(problem or "single_label_classification")
    if name.endswith("ForConditionalGeneration"):
        return seq2seq_lm if config.is_encoder_decoder else None
    return next((loss for ending, loss in _BY_ENDING.items() if name.endswith(ending)), None)


def _known(labels: Tensor, classes: int) -> Tensor:
    """Replaces labels that are not the index of a class by -100."""
    return torch.where((labels >= 0) & (labels < classes), labels, IGNORED)


def _over_tokens(logits: Tensor, labels: Tensor, reduction: str, label_smoothing: float) -> Tensor:
    _one_of_reductions(reduction)
    if labels.shape[1] != logits.shape[1]:
        raise ValueError(
            "Expected one label per token, got labels of another length than the logits. Let collate_fn pad "
            "labels like inputs, as DataCollatorForTokenClassification does."
        )
    labels = _known(labels.to(logits.device), logits.shape[-1])
    losses = F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="none",
        label_smoothing=label_smoothing,
    )
    total = losses.view(labels.shape).sum(1)
    return total if reduction == "sum" else total / (labels != IGNORED).sum(1).clamp(min=1)


def _one_of_reductions(reduction: str) -> str:
    if reduction not in ("mean", "sum"):
        raise ValueError(f"Expected reduction={reduction!r} to be 'mean' or 'sum'.")
    return reduction
