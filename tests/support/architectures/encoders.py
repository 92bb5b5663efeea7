"""Encoders of texts: BERT and its relatives, as classifiers, taggers and readers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.support.architectures.batches import (
    classified,
    hidden_mean,
    inputs_of,
    labels,
    same_words,
    text,
    types,
)
from tests.support.architectures.hugging_face import SMALL, made, texts
from tests.support.architectures.registry import CLASSES, WIDTH, WORDS, Built, T, register


def register_encoders() -> None:
    """Adds encoders of texts."""
    for attention in ("eager", "sdpa"):
        bert = partial(texts, config="BertConfig", attention=attention)
        register(f"BERT, {attention}", bert("BertForSequenceClassification"))
        register(f"BERT, token types, {attention}", bert("BertForSequenceClassification", extra=types))
    register("BERT, masked words", texts("BertForMaskedLM", "BertConfig", loss=same_words))
    register(
        "BERT, token classes", texts("BertForTokenClassification", "BertConfig", loss=tagged, extra=tags)
    )
    register(
        "BERT, spans", texts("BertForQuestionAnswering", "BertConfig", loss=spans, extra=span, num_labels=2)
    )
    register("BERT, multiple choice", multiple_choice)
    register("BERT, sentence vector", texts("BertModel", "BertConfig", loss=hidden_mean))
    for reentrant in (False, True):
        kind = "reentrant" if reentrant else "not reentrant"
        register(f"BERT, checkpointing, {kind}", partial(checkpointed_bert, reentrant))
    distil: dict[str, Any] = dict(dim=WIDTH, hidden_dim=24, n_layers=2, n_heads=2)
    small: list[tuple[str, dict[str, Any]]] = [
        ("Roberta", {}),
        ("DistilBert", distil),
        ("Albert", dict(embedding_size=8)),
        ("Electra", dict(embedding_size=8)),
        ("MPNet", {}),
        ("RoFormer", dict(embedding_size=WIDTH)),
        ("ConvBert", dict(embedding_size=WIDTH, head_ratio=1, conv_kernel_size=3)),
        ("SqueezeBert", dict(embedding_size=WIDTH, **{f"{k}_groups": 2 for k in ("q", "k", "v", "output")})),
        ("MobileBert", dict(embedding_size=WIDTH, intra_bottleneck_size=WIDTH, true_hidden_size=WIDTH)),
        ("ModernBert", dict(local_attention=4, global_attn_every_n_layers=2)),
        ("Nystromformer", dict(num_landmarks=T, segment_means_seq_len=T, conv_kernel_size=3)),
        ("Esm", dict(mask_token_id=2, token_dropout=False)),
    ]
    for kind, options in small:
        register(kind, texts(f"{kind}ForSequenceClassification", f"{kind}Config", **options))
    register(
        "DeBERTa-v2",
        texts(
            "DebertaV2ForSequenceClassification",
            "DebertaV2Config",
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            position_buckets=4,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
        ),
    )
    register(
        "DeBERTa",
        texts(
            "DebertaForSequenceClassification",
            "DebertaConfig",
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
        ),
    )
    register("FNet", fnet)
    own: dict[str, Any] = dict(d_model=WIDTH, n_head=2, d_inner=24, vocab_size=WORDS, num_labels=CLASSES)
    register("XLNet", alone("XLNetForSequenceClassification", "XLNetConfig", n_layer=2, **own))
    register(
        "Funnel",
        alone("FunnelForSequenceClassification", "FunnelConfig", d_head=8, block_sizes=[1, 1], **own),
        expected="changes a view of a weight's copies in place",
    )
    register(
        "BigBird, block sparse",
        texts(
            "BigBirdForSequenceClassification",
            "BigBirdConfig",
            length=32,
            attention_type="block_sparse",
            block_size=2,
            num_random_blocks=1,
        ),
    )
    register(
        "Longformer",
        texts("LongformerForSequenceClassification", "LongformerConfig", attention_window=4),
        expected="asks whether any text of the batch has global attention",
    )
    register("Reformer, local", reformer, expected="differentiates itself in its own backward")


def classified_unmasked(model: Any, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(input_ids=batch["input_ids"]).logits, batch["targets"], reduction="none")


def fnet(n: int) -> Built:
    """Makes a model with a Fourier transform instead of attention. It takes no mask."""
    model = made("FNetForSequenceClassification", "FNetConfig", **SMALL)
    return model, classified_unmasked, text(n) | {"targets": labels(n)}


def alone(model: str, config: str, **options: Any) -> Callable[[int], Built]:
    """Makes a classifier of texts whose configuration has its own option names."""
    return lambda n: (made(model, config, **options), classified, text(n) | {"targets": labels(n)})


def tags(n: int) -> dict[str, Tensor]:
    return {"targets": torch.randint(CLASSES, (n, T))}


def tagged(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Selects words with a boolean mask, and adds their losses up per example."""
    logits = model(**inputs_of(batch)).logits
    kept = batch["attention_mask"].bool()
    losses = F.cross_entropy(logits[kept], batch["targets"][kept], reduction="none")
    rows = torch.arange(len(kept)).unsqueeze(1).expand(kept.shape)[kept]
    return torch.zeros(len(kept), dtype=losses.dtype).index_add(0, rows, losses)


def span(n: int) -> dict[str, Tensor]:
    return {"targets": torch.randint(3, (n, 2))}


def spans(model: Any, batch: dict[str, Tensor]) -> Tensor:
    out = model(**inputs_of(batch))
    first = F.cross_entropy(out.start_logits, batch["targets"][:, 0], reduction="none")
    return first + F.cross_entropy(out.end_logits, batch["targets"][:, 1], reduction="none")


def multiple_choice(n: int) -> Built:
    """Makes a model that folds the choices into the batch."""
    model = made("BertForMultipleChoice", "BertConfig", **SMALL)
    choices = [text(n) for _ in range(CLASSES)]
    batch = {key: torch.stack([c[key] for c in choices], 1) for key in choices[0]}
    return model, classified, batch | {"targets": labels(n)}


def checkpointed_bert(reentrant: bool, n: int) -> Built:
    model, loss, batch = texts("BertForSequenceClassification", "BertConfig")(n)
    options = {"use_reentrant": reentrant}
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)  # type: ignore[operator]
    return model, loss, batch


def reformer(n: int) -> Built:
    """Makes reversible layers: an autograd function runs each layer again in the backward."""
    options: dict[str, Any] = dict(
        attn_layers=["local", "local"],
        hidden_size=WIDTH,
        attention_head_size=8,
        num_attention_heads=2,
        feed_forward_size=24,
        axial_pos_embds=False,
        local_attn_chunk_length=2,
        vocab_size=WORDS,
        max_position_embeddings=32,
        num_labels=CLASSES,
        is_decoder=False,
    )
    batch = text(n) | {"targets": labels(n)}
    return made("ReformerForSequenceClassification", "ReformerConfig", **options), classified, batch
