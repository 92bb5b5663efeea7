"""Whole models of Hugging Face, with random weights: BERT, MiniLM and GPT-2, and adapters on them.

The factories skip the test where `transformers` or `peft` is not installed. Nothing is downloaded.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.support.whole_models.data import (
    CLASSES,
    PADDING,
    WORDS,
    B,
    Batch,
    Built,
    Loss,
    T,
    labels,
    next_words,
    words,
)

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the first import of transformers


def checkpointed(model: Any, reentrant: bool | None) -> Any:
    if reentrant is not None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    return model


def visible(ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns a mask of shape `(n, 1, T, T)` that the models add to attention scores unchanged."""
    hidden = torch.zeros(ids.shape, dtype=dtype).masked_fill(ids == PADDING, torch.finfo(dtype).min)
    return hidden[:, None, None, :].expand(-1, -1, ids.shape[1], -1)


def bert_classification(model: Any, batch: Batch) -> Tensor:
    ids, types, targets = batch
    out = model(input_ids=ids, token_type_ids=types, attention_mask=visible(ids, model.dtype))
    return F.cross_entropy(out.logits, targets, reduction="none")


def bert_sentence(model: Any, batch: Batch) -> Tensor:
    """Compares the mean over the words of a sentence with a target vector, as MiniLM does."""
    ids, types, targets = batch
    out = model(input_ids=ids, token_type_ids=types, attention_mask=visible(ids, model.dtype))
    kept = (ids != PADDING).to(model.dtype).unsqueeze(2)
    vectors = (out.last_hidden_state * kept).sum(1) / kept.sum(1)
    return 1 - F.cosine_similarity(vectors, targets.to(vectors.dtype))


def bert_config(attention: str, dropout: float) -> Any:
    """Makes a configuration with the architecture of MiniLM, but small."""
    transformers = pytest.importorskip("transformers")
    return transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=2 * T,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        num_labels=CLASSES,
        attn_implementation=attention,
    )


def types() -> Tensor:
    """Makes token types: the end of each text is of the second type."""
    return (torch.arange(T) > 3).long().repeat(B, 1)


def bert(attention: str = "eager", dropout: float = 0.0, reentrant: bool | None = None) -> Built:
    config = bert_config(attention, dropout)
    model = pytest.importorskip("transformers").BertForSequenceClassification(config)
    return checkpointed(model, reentrant), (words(), types(), labels()), bert_classification


def minilm(dropout: float = 0.0, reentrant: bool | None = None) -> Built:
    config = bert_config("sdpa", dropout)
    model = pytest.importorskip("transformers").BertModel(config, add_pooling_layer=False)
    return checkpointed(model, reentrant), (words(), types(), torch.randn(B, 32)), bert_sentence


def gpt2_language(model: Any, batch: Batch) -> Tensor:
    """Computes the loss without an attention mask, since no word sees the padding after it."""
    return next_words(model(input_ids=batch[0]).logits, batch[0])


def gpt2_masked(model: Any, batch: Batch) -> Tensor:
    out = model(input_ids=batch[0], attention_mask=(batch[0] != PADDING).long())
    return next_words(out.logits, batch[0])


def gpt2(
    attention: str = "eager",
    loss: Loss = gpt2_language,
    dropout: float = 0.0,
    reentrant: bool | None = None,
) -> Built:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_positions=2 * T,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=PADDING,
        eos_token_id=PADDING,
        use_cache=False,
        attn_implementation=attention,
    )
    return checkpointed(transformers.GPT2LMHeadModel(config), reentrant), (words(),), loss


def adapted(base: Callable[..., Built], **options: Any) -> Callable[..., Built]:
    """Makes a factory of a frozen model with trainable low-rank adapters."""

    def build(dropout: float = 0.0, reentrant: bool | None = None) -> Built:
        peft = pytest.importorskip("peft")
        model, batch, loss = base(dropout=dropout, reentrant=reentrant)
        config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=dropout, **options)
        return peft.get_peft_model(model, config), batch, loss

    return build
