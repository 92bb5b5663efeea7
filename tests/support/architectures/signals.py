"""Models of sounds and time series."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.support.architectures.registry import CLASSES, END, PADDING, WIDTH, WORDS, Built, register
from tests.support.architectures.texts import classified, labels, made, present, squared, text, translated


def register_signals() -> None:
    """Adds models of sounds and time series."""
    sound: dict[str, Any] = dict(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        conv_dim=[8, 8],
        conv_stride=[4, 2],
        conv_kernel=[4, 2],
        num_feat_extract_layers=2,
        classifier_proj_size=8,
        num_labels=CLASSES,
        apply_spec_augment=False,
    )
    for kind in ("Wav2Vec2", "Hubert", "WavLM"):
        register(kind, sounds(f"{kind}ForSequenceClassification", f"{kind}Config", **sound))
    register("Wav2Vec2, CTC", partial(ctc, sound))
    register("Whisper", whisper)
    register("Audio spectrogram transformer", spectrogram)
    register("PatchTST", patches)
    register("PatchTSMixer", mixer)


def sounds(model: str, config: str, **options: Any) -> Callable[[int], Built]:
    def build(n: int) -> Built:
        batch = {
            "input_values": torch.randn(n, 96),
            "attention_mask": present(n, 96 // 16).repeat_interleave(16, 1).long(),
        }
        return made(model, config, **options), classified, batch | {"targets": labels(n)}

    return build


def ctc(options: dict[str, Any], n: int) -> Built:
    model = made("Wav2Vec2ForCTC", "Wav2Vec2Config", **options)

    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        logits = model(input_values=batch["input_values"]).logits
        logs = F.log_softmax(logits, 2).transpose(0, 1)
        times = torch.full((len(logits),), logs.shape[0])
        return F.ctc_loss(logs, batch["targets"], times, batch["lengths"], reduction="none")

    targets = torch.randint(1, WORDS, (n, 3))
    return (
        model,
        loss,
        {"input_values": torch.randn(n, 96), "targets": targets, "lengths": 3 - torch.arange(n) % 2},
    )


def whisper(n: int) -> Built:
    model = made(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        vocab_size=WORDS,
        num_mel_bins=8,
        d_model=WIDTH,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_source_positions=8,
        max_target_positions=16,
        pad_token_id=PADDING,
        bos_token_id=END,
        eos_token_id=END,
        decoder_start_token_id=2,
        begin_suppress_tokens=None,
    )
    other = text(n)
    batch = {
        "input_features": torch.randn(n, 8, 16),
        "decoder_input_ids": other["input_ids"].roll(1, 1),
        "decoder_attention_mask": other["attention_mask"],
        "targets": other["input_ids"],
    }
    return model, translated, batch


def spectrogram(n: int) -> Built:
    model = made(
        "ASTForAudioClassification",
        "ASTConfig",
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        patch_size=4,
        frequency_stride=4,
        time_stride=4,
        max_length=16,
        num_mel_bins=8,
        num_labels=CLASSES,
    )
    return model, classified, {"input_values": torch.randn(n, 16, 8), "targets": labels(n)}


def patches(n: int) -> Built:
    """Channels are folded with the batch; statistics are of each series."""
    model = made(
        "PatchTSTForRegression",
        "PatchTSTConfig",
        num_input_channels=2,
        context_length=16,
        patch_length=4,
        patch_stride=4,
        num_hidden_layers=2,
        d_model=WIDTH,
        num_attention_heads=2,
        ffn_dim=24,
        num_targets=2,
        norm_type="layernorm",
        loss="mse",
    )
    return model, squared(lambda o: o.regression_outputs), {"past_values": torch.randn(n, 16, 2)}


def mixer(n: int) -> Built:
    model = made(
        "PatchTSMixerForRegression",
        "PatchTSMixerConfig",
        num_input_channels=2,
        context_length=16,
        patch_length=4,
        patch_stride=4,
        num_layers=2,
        d_model=WIDTH,
        num_targets=2,
        norm_mlp="LayerNorm",
        loss="mse",
    )
    return model, squared(lambda o: o.regression_outputs), {"past_values": torch.randn(n, 16, 2)}
