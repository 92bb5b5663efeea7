"""Random batches, and losses on them with one value for each example."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.architectures.registry import CLASSES, PADDING, WORDS, Loss, T


def labels(n: int) -> Tensor:
    return torch.randint(CLASSES, (n,))


def lengths(n: int, length: int = T) -> Tensor:
    """Returns different lengths, not sorted. The first example has no padding."""
    return length - torch.arange(n) * 2 % 3


def present(n: int, length: int = T) -> Tensor:
    """Returns a mask of the words that are not padding."""
    return torch.arange(length) < lengths(n, length).unsqueeze(1)


def words(n: int, length: int = T) -> Tensor:
    """Draws texts of different lengths, with repeated words and padding at the end."""
    ids = torch.randint(2, WORDS, (n, length))
    ids[:, 2] = ids[:, 0]
    return torch.where(present(n, length), ids, PADDING)


def text(n: int, length: int = T) -> dict[str, Tensor]:
    return {"input_ids": words(n, length), "attention_mask": present(n, length).long()}


def types(n: int) -> dict[str, Tensor]:
    """Assigns the end of each text to the second token type."""
    return {"token_type_ids": (torch.arange(T) > 3).long().repeat(n, 1)}


def inputs_of(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the model's inputs: all tensors except the targets."""
    return {key: x for key, x in batch.items() if key != "targets"}


def decoded(n: int, length: int = T) -> dict[str, Tensor]:
    """Draws the inputs of a decoder and the words that it must predict."""
    batch = text(n, length)
    return {
        "decoder_input_ids": batch["input_ids"].roll(1, 1),
        "decoder_attention_mask": batch["attention_mask"],
        "targets": batch["input_ids"],
    }


def token_losses(logits: Tensor, ids: Tensor, kept: Tensor) -> Tensor:
    """Averages the losses of the kept words of each text."""
    losses = F.cross_entropy(logits.transpose(1, 2), ids, reduction="none")
    weights = kept.to(losses.dtype)
    return (losses * weights).sum(1) / weights.sum(1)


def classified(model: Any, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(**inputs_of(batch)).logits, batch["targets"], reduction="none")


def next_words(model: Any, batch: dict[str, Tensor]) -> Tensor:
    ids, mask = batch["input_ids"], batch["attention_mask"]
    return token_losses(model(**batch).logits[:, :-1], ids[:, 1:], mask[:, 1:])


def next_words_unmasked(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Computes the losses of a language model that takes no mask."""
    ids, mask = batch["input_ids"], batch["attention_mask"]
    return token_losses(model(input_ids=ids).logits[:, :-1], ids[:, 1:], mask[:, 1:])


def same_words(model: Any, batch: dict[str, Tensor]) -> Tensor:
    return token_losses(model(**inputs_of(batch)).logits, batch["targets"], batch["attention_mask"])


def translated(model: Any, batch: dict[str, Tensor]) -> Tensor:
    logits = model(**inputs_of(batch)).logits
    return token_losses(logits, batch["targets"], batch["decoder_attention_mask"])


def squared(output: Callable[[Any], Tensor]) -> Loss:
    """Makes a non-linear loss of an output, averaged over each example's entries."""

    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        out = output(model(**batch)).flatten(1)
        return (out.square() + (3 * out).sin()).mean(1)

    return loss


def hidden_mean(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Computes a non-linear loss of each sentence's vector, the mean over its words."""
    out = model(**batch).last_hidden_state
    kept = batch["attention_mask"].to(out.dtype).unsqueeze(2)
    vectors = (out * kept).sum(1) / kept.sum(1)
    return (vectors.square() + (3 * vectors).sin()).mean(1)


def plain_classified(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Computes the losses of a classifier. The last tensor has the labels, the others are the inputs."""
    return F.cross_entropy(model(*batch[:-1]), batch[-1], reduction="none")
