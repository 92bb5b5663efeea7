"""Models with an encoder and a decoder."""

from collections.abc import Callable
from typing import Any

import torch

from tests.support.architectures.batches import classified, labels, lengths, text
from tests.support.architectures.hugging_face import ENCODER_DECODER, made, translation
from tests.support.architectures.registry import CLASSES, END, PADDING, WIDTH, WORDS, Built, T, register


def register_translators() -> None:
    """Adds models with an encoder and a decoder."""
    t5: dict[str, Any] = dict(
        vocab_size=WORDS,
        d_model=WIDTH,
        d_kv=8,
        d_ff=24,
        num_layers=2,
        num_heads=2,
        relative_attention_num_buckets=8,
        decoder_start_token_id=PADDING,
    )
    for attention in ("eager", "sdpa"):
        register(
            f"T5, {attention}",
            translation("T5ForConditionalGeneration", "T5Config", attention=attention, **t5),
        )
    register(
        "mT5, gated",
        translation("MT5ForConditionalGeneration", "MT5Config", feed_forward_proj="gated-gelu", **t5),
    )
    register(
        "T5, classification",
        ended("T5ForSequenceClassification", "T5Config", **t5, num_labels=CLASSES),
        expected="counts the ends of all texts of the batch, to raise an error",
    )
    bart: dict[str, Any] = ENCODER_DECODER | dict(
        bos_token_id=2, decoder_start_token_id=END, forced_eos_token_id=END
    )
    positions: dict[str, Any] = dict(max_position_embeddings=32)
    for kind in ("Bart", "MBart", "Pegasus", "Marian", "Blenderbot"):
        register(
            kind,
            translation(
                f"{kind}ForConditionalGeneration" if kind != "Marian" else "MarianMTModel",
                f"{kind}Config",
                **bart,
                **positions,
            ),
        )
    register("M2M-100", translation("M2M100ForConditionalGeneration", "M2M100Config", **bart, **positions))
    register(
        "Bart, classification",
        ended("BartForSequenceClassification", "BartConfig", **bart, **positions, num_labels=CLASSES),
        expected="counts the ends of all texts of the batch, to raise an error",
    )
    register(
        "LED",
        translation(
            "LEDForConditionalGeneration",
            "LEDConfig",
            length=8,
            attention_window=4,
            max_encoder_position_embeddings=32,
            max_decoder_position_embeddings=32,
            **bart,
        ),
        expected="asks whether any text of the batch has global attention",
    )


def ended(model: str, config: str, **options: Any) -> Callable[[int], Built]:
    """Makes a classifier that reads the hidden state of the last word. All texts end with the same word."""

    def build(n: int) -> Built:
        batch = text(n)
        last = torch.arange(T) == lengths(n).unsqueeze(1) - 1
        batch["input_ids"] = torch.where(last, END, batch["input_ids"])
        return made(model, config, **options), classified, batch | {"targets": labels(n)}

    return build
