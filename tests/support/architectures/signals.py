"""Models of sounds and time series."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.support.architectures.batches import classified, decoded, labels, present, squared, translated
from tests.support.architectures.hugging_face import ENCODER_DECODER, LAYERS, made
from tests.support.architectures.registry import CLASSES, END, WIDTH, WORDS, Built, register


def register_signals() -> None:
    """Adds models of sounds and time series."""
    sound: dict[str, Any] = LAYERS | dict(
        vocab_size=WORDS,
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
    patches: dict[str, Any] = dict(num_hidden_layers=2, num_attention_heads=2, ffn_dim=24)
    register("PatchTST", series("PatchTSTForRegression", "PatchTSTConfig", norm_type="layernorm", **patches))
    register(
        "PatchTSMixer",
        series("PatchTSMixerForRegression", "PatchTSMixerConfig", num_layers=2, norm_mlp="LayerNorm"),
    )


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

    batch = {
        "input_values": torch.randn(n, 96),
        "targets": torch.randint(1, WORDS, (n, 3)),
        "lengths": 3 - torch.arange(n) % 2,
    }
    return model, loss, batch


def whisper(n: int) -> Built:
    model = made(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        num_mel_bins=8,
        max_source_positions=8,
        max_target_positions=16,
        bos_token_id=END,
        decoder_start_token_id=2,
        begin_suppress_tokens=None,
        **ENCODER_DECODER,
    )
    return model, translated, decoded(n) | {"input_features": torch.randn(n, 8, 16)}


def spectrogram(n: int) -> Built:
    model = made(
        "ASTForAudioClassification",
        "ASTConfig",
        patch_size=4,
        frequency_stride=4,
        time_stride=4,
        max_length=16,
        num_mel_bins=8,
        num_labels=CLASSES,
        **LAYERS,
    )
    return model, classified, {"input_values": torch.randn(n, 16, 8), "targets": labels(n)}


def series(model: str, config: str, **options: Any) -> Callable[[int], Built]:
    """Makes a regression on time series. The model folds channels with the batch."""
    shared: dict[str, Any] = dict(
        num_input_channels=2,
        context_length=16,
        patch_length=4,
        patch_stride=4,
        d_model=WIDTH,
        num_targets=2,
        loss="mse",
    )

    def build(n: int) -> Built:
        outputs = squared(lambda o: o.regression_outputs)
        return made(model, config, **shared, **options), outputs, {"past_values": torch.randn(n, 16, 2)}

    return build
