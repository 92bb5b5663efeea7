"""Architectures as people train them, tiny and with random weights: what the fast engine is judged on.

A registry of factories. `ARCHITECTURES[name].build(n)` makes a model, a loss with one value for each example,
and a batch of `n` examples whose tensors have the example axis first. Hugging Face models come from
`transformers`, adapters from `peft`; both are imported in the factories only. Nothing is fetched. `MIXED` has
models and losses in which the examples of a batch meet, which no engine may accept.

    python tests/architectures.py [part of a name ...]

prints for each architecture whether the fast engine accepts it, how exact it is, and the seconds for building
it, for plain autograd one example at a time, and for the engine.
"""

import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from adamas import UnsupportedError
from adamas._nests import map_tensors
from adamas.engines import ENGINES
from tests.support.models_by_hand import Gradients, geometries, some_weights, summed, whitened_norms

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the first import of transformers

N, T, WORDS, CLASSES, WIDTH = 5, 6, 60, 3, 16
PADDING, END = 0, 1
TOLERANCE = 1e-9

Batch = Any  # tensors by name, or in a tuple
Loss = Callable[[Any, Batch], Tensor]
Built = tuple[nn.Module, Loss, Batch]


@dataclass(frozen=True)
class Architecture:
    """A model to judge the engine on.

    Attributes:
        factory: Makes model, loss and batch for a number of examples.
        expected: "fast", or why the fast engine may refuse it.
        tolerance: The relative error that is allowed: 1e-9, or more where the model computes in float32.
        dtype: The type of parameters and data.
        frozen: Whether the statistics of batch normalisation are frozen.
    """

    factory: Callable[[int], Built]
    expected: str = "fast"
    tolerance: float = TOLERANCE
    dtype: torch.dtype = torch.float64
    frozen: bool = True

    def build(self, n: int = N) -> Built:
        """Makes it, in training mode and with parameters that are no ones and zeros."""
        dtype = self.dtype
        torch.manual_seed(0)
        model, loss, batch = self.factory(n)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1 * torch.randn_like(p))
        model.to(dtype).train()
        for module in model.modules():
            if self.frozen and isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()

        def cast(x: Tensor) -> Tensor:
            return x.to(dtype) if x.is_floating_point() else x

        if isinstance(batch, dict):
            return model, loss, {key: cast(x) for key, x in batch.items()}
        return model, loss, tuple(map(cast, batch))


ARCHITECTURES: dict[str, Architecture] = {}
MIXED: dict[str, Architecture] = {}


def register(name: str, factory: Callable[[int], Built], **options: Any) -> None:
    """Adds an architecture to the registry."""
    assert name not in ARCHITECTURES, name
    ARCHITECTURES[name] = Architecture(factory, **options)


# --- data and losses ----------------------------------------------------------------------------------


def labels(n: int) -> Tensor:
    return torch.randint(CLASSES, (n,))


def lengths(n: int, length: int = T) -> Tensor:
    """Different lengths in no order; the first example has no padding."""
    return length - torch.arange(n) * 2 % 3


def present(n: int, length: int = T) -> Tensor:
    """Which words of each text are no padding."""
    return torch.arange(length) < lengths(n, length).unsqueeze(1)


def words(n: int, length: int = T) -> Tensor:
    """Texts of different lengths, with repeated words and padding at the end."""
    ids = torch.randint(2, WORDS, (n, length))
    ids[:, 2] = ids[:, 0]
    return torch.where(present(n, length), ids, PADDING)


def text(n: int, length: int = T) -> dict[str, Tensor]:
    return {"input_ids": words(n, length), "attention_mask": present(n, length).long()}


def inputs_of(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the model takes: all but the targets."""
    return {key: x for key, x in batch.items() if key != "targets"}


def token_losses(logits: Tensor, ids: Tensor, kept: Tensor) -> Tensor:
    """The mean of the losses of a text's words, without those that are not kept."""
    losses = F.cross_entropy(logits.transpose(1, 2), ids, reduction="none")
    weights = kept.to(losses.dtype)
    return (losses * weights).sum(1) / weights.sum(1)


def classified(model: Any, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(**inputs_of(batch)).logits, batch["targets"], reduction="none")


def next_words(model: Any, batch: dict[str, Tensor]) -> Tensor:
    ids, mask = batch["input_ids"], batch["attention_mask"]
    return token_losses(model(**batch).logits[:, :-1], ids[:, 1:], mask[:, 1:])


def next_words_unmasked(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """For models that take no mask."""
    ids, mask = batch["input_ids"], batch["attention_mask"]
    return token_losses(model(input_ids=ids).logits[:, :-1], ids[:, 1:], mask[:, 1:])


def same_words(model: Any, batch: dict[str, Tensor]) -> Tensor:
    return token_losses(model(**inputs_of(batch)).logits, batch["targets"], batch["attention_mask"])


def translated(model: Any, batch: dict[str, Tensor]) -> Tensor:
    logits = model(**inputs_of(batch)).logits
    return token_losses(logits, batch["targets"], batch["decoder_attention_mask"])


def squared(output: Callable[[Any], Tensor]) -> Loss:
    """The square distance of an output, flat for each example, to nothing in particular."""

    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        out = output(model(**batch)).flatten(1)
        return (out.square() + (3 * out).sin()).mean(1)

    return loss


def hidden_mean(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """The mean over the words as a sentence's vector."""
    out = model(**batch).last_hidden_state
    kept = batch["attention_mask"].to(out.dtype).unsqueeze(2)
    vectors = (out * kept).sum(1) / kept.sum(1)
    return (vectors.square() + (3 * vectors).sin()).mean(1)


def plain_classified(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """The last tensor is the labels, the others are what the model takes."""
    return F.cross_entropy(model(*batch[:-1]), batch[-1], reduction="none")


# --- models of Hugging Face ---------------------------------------------------------------------------


def made(model: str, config: str, attention: str | None = None, **options: Any) -> Any:
    """Makes a model of `transformers` without dropout."""
    transformers = pytest.importorskip("transformers")
    if attention is not None:
        options["attn_implementation"] = attention
    settings = getattr(transformers, config)(**options)
    for part in (settings, *(v for v in vars(settings).values() if hasattr(v, "to_dict"))):
        for key, value in list(vars(part).items()):
            if "drop" in key and isinstance(value, float):
                setattr(part, key, 0.0)
    return getattr(transformers, model)(settings)


SMALL: dict[str, Any] = dict(
    vocab_size=WORDS,
    hidden_size=WIDTH,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=32,
    num_labels=CLASSES,
    pad_token_id=PADDING,
    bos_token_id=END,
    eos_token_id=END,
)


def texts(
    model: str, config: str, *, loss: Loss = classified, length: int = T, extra: Any = None, **options: Any
) -> Callable[[int], Built]:
    """A model of texts with padding; targets are classes, or words where the loss asks for them."""

    def build(n: int) -> Built:
        batch = text(n, length)
        if loss is classified:
            batch["targets"] = labels(n)
        elif loss is same_words:
            batch["targets"] = words(n, length)
        if extra is not None:
            batch |= extra(n)
        return made(model, config, **(SMALL | options)), loss, batch

    return build


def translation(model: str, config: str, length: int = T, **options: Any) -> Callable[[int], Built]:
    def build(n: int) -> Built:
        batch = text(n, length)
        other = text(n, T - 1)
        batch["decoder_input_ids"] = other["input_ids"].roll(1, 1)
        batch["decoder_attention_mask"] = other["attention_mask"]
        batch["targets"] = other["input_ids"]
        return made(model, config, **options), translated, batch

    return build


def images(
    model: str,
    config: str,
    *,
    loss: Loss = classified,
    size: int = 8,
    frames: int | None = None,
    **options: Any,
) -> Callable[[int], Built]:
    def build(n: int) -> Built:
        shape = (n, 3, size, size) if frames is None else (n, frames, 3, size, size)
        batch = {"pixel_values": torch.randn(shape)}
        if loss is classified:
            batch["targets"] = labels(n)
        return made(model, config, **({"num_labels": CLASSES} | options)), loss, batch

    return build


def types(n: int) -> dict[str, Tensor]:
    """The second part of each text is of the second type."""
    return {"token_type_ids": (torch.arange(T) > 3).long().repeat(n, 1)}


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
    """A Fourier transform instead of attention; it takes no mask."""
    model = made("FNetForSequenceClassification", "FNetConfig", **SMALL)
    return model, classified_unmasked, text(n) | {"targets": labels(n)}


def alone(model: str, config: str, **options: Any) -> Callable[[int], Built]:
    """A classifier of texts whose configuration has names of its own."""
    return lambda n: (made(model, config, **options), classified, text(n) | {"targets": labels(n)})


def tags(n: int) -> dict[str, Tensor]:
    return {"targets": torch.randint(CLASSES, (n, T))}


def tagged(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Sums the losses of the words that are picked by a boolean mask back into their examples."""
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
    """Choices are folded into the batch by the model itself."""
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
    """Reversible layers: an autograd function that runs each layer again in the backward."""
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


def register_decoders() -> None:
    """Adds language models."""
    gpt2: dict[str, Any] = dict(n_embd=WIDTH, n_layer=2, n_head=2, n_positions=32)
    for attention in ("eager", "sdpa"):
        register(
            f"GPT-2, language, {attention}",
            texts("GPT2LMHeadModel", "GPT2Config", loss=next_words, attention=attention, **gpt2),
        )
    register("GPT-2, classification", texts("GPT2ForSequenceClassification", "GPT2Config", **gpt2))
    grouped: dict[str, Any] = dict(num_key_value_heads=1)
    neo = dict(num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]], window_size=3)
    small: list[tuple[str, str, dict[str, Any]]] = [
        ("GPT-Neo", "GPTNeo", neo),
        ("GPT-NeoX", "GPTNeoX", {}),
        ("GPT-J", "GPTJ", dict(n_embd=WIDTH, n_layer=2, n_head=2, n_positions=32, rotary_dim=4)),
        ("GPT-BigCode", "GPTBigCode", gpt2),
        ("OPT", "OPT", dict(ffn_dim=24, word_embed_proj_dim=WIDTH)),
        ("Llama", "Llama", grouped),
        ("Mistral", "Mistral", grouped | dict(sliding_window=3)),
        ("Qwen2", "Qwen2", grouped),
        ("Qwen3", "Qwen3", grouped | dict(head_dim=8)),
        ("Gemma", "Gemma", grouped | dict(head_dim=8)),
        ("Gemma-2", "Gemma2", grouped | dict(head_dim=8, sliding_window=3)),
        ("Phi", "Phi", {}),
        ("Phi-3", "Phi3", grouped),
        ("Falcon", "Falcon", {}),
        ("Falcon, alibi", "Falcon", dict(alibi=True, parallel_attn=False)),
        ("Bloom", "Bloom", dict(n_layer=2, n_head=2)),
        ("MPT", "Mpt", dict(d_model=WIDTH, n_heads=2, n_layers=2, max_seq_len=32)),
        ("StableLM", "StableLm", grouped),
        ("BioGPT", "BioGpt", {}),
        ("Mixtral, eager", "Mixtral", grouped | moe("eager") | dict(num_local_experts=4)),
        ("Mixtral, batched", "Mixtral", grouped | moe("batched_mm") | dict(num_local_experts=4)),
        ("Qwen2-MoE, eager", "Qwen2Moe", grouped | moe("eager") | qwen_experts()),
        ("Qwen2-MoE, batched", "Qwen2Moe", grouped | moe("batched_mm") | qwen_experts()),
        ("Mamba", "Mamba", dict(state_size=4, expand=2, time_step_rank=2, use_mambapy=False)),
        (
            "Mamba-2",
            "Mamba2",
            dict(state_size=4, expand=2, num_heads=4, head_dim=8, n_groups=1, chunk_size=2),
        ),
        ("RWKV", "Rwkv", dict(attention_hidden_size=WIDTH, context_length=32)),
        ("RecurrentGemma", "RecurrentGemma", recurrent_gemma()),
    ]
    narrow = {
        "Gemma",
        "Gemma2",
        "Mamba",
        "Mamba2",
        "RecurrentGemma",
    }  # whose norms or scans are of float32, whatever the model is
    for name, kind, options in small:
        loss = next_words_unmasked if kind == "Rwkv" else next_words
        factory = texts(f"{kind}ForCausalLM", f"{kind}Config", loss=loss, **options)
        expected = "fast"
        if options.get("experts_implementation") == "eager":
            expected = "runs the experts that any token of the batch chose"
        elif kind == "RecurrentGemma":
            expected = "keeps the last state of a batch on a module"
        register(
            name,
            factory,
            tolerance=1e-6 if kind in narrow else TOLERANCE,
            expected=expected,
        )
    experts = grouped | moe("grouped_mm") | dict(num_local_experts=4)
    register(
        "Mixtral, grouped",
        texts("MixtralForCausalLM", "MixtralConfig", loss=next_words, **experts),
        dtype=torch.float32,  # torch's grouped product knows no other
        tolerance=1e-4,
        expected="sorts the tokens of all texts by their experts",
    )
    register("Llama, classification", texts("LlamaForSequenceClassification", "LlamaConfig", **grouped))
    register(
        "Llama, eager",
        texts("LlamaForCausalLM", "LlamaConfig", loss=next_words, attention="eager", **grouped),
    )


def moe(implementation: str) -> dict[str, Any]:
    return dict(num_experts_per_tok=2, experts_implementation=implementation)


def qwen_experts() -> dict[str, Any]:
    return dict(num_experts=4, moe_intermediate_size=8, shared_expert_intermediate_size=8)


def recurrent_gemma() -> dict[str, Any]:
    return dict(lru_width=WIDTH, num_key_value_heads=1, attention_window_size=4, head_dim=8)


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
    bart: dict[str, Any] = dict(
        vocab_size=WORDS,
        d_model=WIDTH,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_position_embeddings=32,
        pad_token_id=PADDING,
        bos_token_id=2,
        eos_token_id=END,
        decoder_start_token_id=END,
        forced_eos_token_id=END,
    )
    for kind in ("Bart", "MBart", "Pegasus", "Marian", "Blenderbot"):
        register(
            kind,
            translation(
                f"{kind}ForConditionalGeneration" if kind != "Marian" else "MarianMTModel",
                f"{kind}Config",
                **bart,
            ),
        )
    register("M2M-100", translation("M2M100ForConditionalGeneration", "M2M100Config", **bart))
    register(
        "Bart, classification",
        ended("BartForSequenceClassification", "BartConfig", **bart, num_labels=CLASSES),
        expected="counts the ends of all texts of the batch, to raise an error",
    )
    led = {k: v for k, v in bart.items() if k != "max_position_embeddings"}
    register(
        "LED",
        translation(
            "LEDForConditionalGeneration",
            "LEDConfig",
            length=8,
            attention_window=4,
            max_encoder_position_embeddings=32,
            max_decoder_position_embeddings=32,
            **led,
        ),
        expected="asks whether any text of the batch has global attention",
    )


def ended(model: str, config: str, **options: Any) -> Callable[[int], Built]:
    """A classifier that takes the hidden state of the last word, which is the same for all texts."""

    def build(n: int) -> Built:
        batch = text(n)
        last = torch.arange(T) == lengths(n).unsqueeze(1) - 1
        batch["input_ids"] = torch.where(last, END, batch["input_ids"])
        return made(model, config, **options), classified, batch | {"targets": labels(n)}

    return build


def register_vision() -> None:
    """Adds models of images and videos."""
    vit: dict[str, Any] = dict(
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=8,
        patch_size=4,
    )
    register("ViT, eager", images("ViTForImageClassification", "ViTConfig", attention="eager", **vit))
    register("ViT, sdpa", images("ViTForImageClassification", "ViTConfig", attention="sdpa", **vit))
    register("DeiT", images("DeiTForImageClassification", "DeiTConfig", **vit))
    for attention in ("eager", "sdpa"):
        beit: dict[str, Any] = dict(use_relative_position_bias=True, use_shared_relative_position_bias=False)
        register(
            f"BEiT, {attention}",
            images("BeitForImageClassification", "BeitConfig", attention=attention, **vit, **beit),
        )
    register("DINOv2", images("Dinov2ForImageClassification", "Dinov2Config", mlp_ratio=2, **vit))
    swin: dict[str, Any] = dict(
        image_size=16, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=4
    )
    register("Swin", images("SwinForImageClassification", "SwinConfig", size=16, **swin))
    register("Swin-v2", images("Swinv2ForImageClassification", "Swinv2Config", size=16, **swin))
    conv: dict[str, Any] = dict(hidden_sizes=[8, WIDTH], depths=[1, 1])
    register(
        "ConvNext", images("ConvNextForImageClassification", "ConvNextConfig", num_stages=2, size=16, **conv)
    )
    register(
        "ConvNext-v2",
        images("ConvNextV2ForImageClassification", "ConvNextV2Config", num_stages=2, size=16, **conv),
    )
    resnet: dict[str, Any] = dict(embedding_size=8, layer_type="basic", size=16, **conv)
    register("ResNet, frozen statistics", images("ResNetForImageClassification", "ResNetConfig", **resnet))
    register(
        "RegNet, frozen statistics",
        images(
            "RegNetForImageClassification", "RegNetConfig", embedding_size=8, groups_width=4, size=16, **conv
        ),
    )
    vision = "CLIPVisionModelWithProjection"
    register(
        "CLIP, images",
        images(vision, "CLIPVisionConfig", loss=squared(lambda o: o.image_embeds), projection_dim=8, **vit),
    )
    register(
        "SigLIP, images",
        images("SiglipVisionModel", "SiglipVisionConfig", loss=squared(lambda o: o.pooler_output), **vit),
    )
    register(
        "CLIP, texts",
        texts(
            "CLIPTextModelWithProjection",
            "CLIPTextConfig",
            loss=squared(lambda o: o.text_embeds),
            projection_dim=8,
            eos_token_id=2,
        ),
    )
    register("CLIP, pairs of a text and an image", clip_pairs)
    video: dict[str, Any] = dict(num_frames=4, frames=4, **vit)
    register("VideoMAE", images("VideoMAEForVideoClassification", "VideoMAEConfig", tubelet_size=2, **video))
    register(
        "TimeSformer",
        images("TimesformerForVideoClassification", "TimesformerConfig", **video),
        expected="takes the class tokens of all films from the frames of the first",
    )
    register("ViViT", images("VivitForVideoClassification", "VivitConfig", tubelet_size=[2, 4, 4], **video))
    segformer: dict[str, Any] = dict(
        size=32,
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[8, WIDTH],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=8,
    )
    register("SegFormer", images("SegformerForImageClassification", "SegformerConfig", **segformer))
    pixels = squared(lambda o: o.logits)
    register(
        "SegFormer, segmentation",
        images("SegformerForSemanticSegmentation", "SegformerConfig", loss=pixels, **segformer),
    )
    register("ViT-MAE, with its own noise", mae)
    register(
        "Perceiver, images",
        images("PerceiverForImageClassificationLearned", "PerceiverConfig", **perceiver()),
    )


def perceiver() -> dict[str, Any]:
    return dict(
        image_size=8,
        num_latents=4,
        d_latents=WIDTH,
        num_blocks=1,
        num_self_attends_per_block=1,
        num_self_attention_heads=2,
        num_cross_attention_heads=1,
        d_model=32,
    )


def clip_pairs(n: int) -> Built:
    """The similarity of an example's text to its own image: no negatives from the batch."""
    part: dict[str, Any] = dict(
        hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    model = made(
        "CLIPModel",
        "CLIPConfig",
        text_config=part | dict(vocab_size=WORDS, max_position_embeddings=32, eos_token_id=2),
        vision_config=part | dict(image_size=8, patch_size=4),
        projection_dim=8,
    )

    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        out = model(**batch)
        return 1 - (out.text_embeds * out.image_embeds).sum(1)

    return model, loss, text(n) | {"pixel_values": torch.randn(n, 3, 8, 8)}


def mae(n: int) -> Built:
    model = made(
        "ViTMAEForPreTraining",
        "ViTMAEConfig",
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=8,
        patch_size=2,
        decoder_hidden_size=WIDTH,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=24,
    )

    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        out = model(**batch)
        target = model.patchify(batch["pixel_values"])
        return ((out.logits - target).square().mean(2) * out.mask).sum(1) / out.mask.sum(1)

    return model, loss, {"pixel_values": torch.randn(n, 3, 8, 8), "noise": torch.rand(n, 16)}


def register_others() -> None:
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


# --- adapters -----------------------------------------------------------------------------------------


def adapted(base: Callable[[int], Built], config: str, **options: Any) -> Callable[[int], Built]:
    """An adapter of `peft` on a model of which everything else is frozen."""

    def build(n: int) -> Built:
        peft = pytest.importorskip("peft")
        model, loss, batch = base(n)
        return peft.get_peft_model(model, getattr(peft, config)(**options)), loss, batch

    return build


def register_adapters() -> None:
    """Adds adapters on small models."""
    bert = texts("BertForSequenceClassification", "BertConfig")
    gpt2 = texts(
        "GPT2LMHeadModel", "GPT2Config", loss=next_words, n_embd=WIDTH, n_layer=2, n_head=2, n_positions=32
    )
    t5 = ARCHITECTURES["T5, sdpa"].factory
    llama = ARCHITECTURES["Llama"].factory
    attention = dict(target_modules=["query", "value"], task_type="SEQ_CLS")
    low = dict(r=2, lora_alpha=4)
    virtual = dict(num_virtual_tokens=3)
    register("BERT, LoRA", adapted(bert, "LoraConfig", **low, **attention))
    register("BERT, DoRA", adapted(bert, "LoraConfig", use_dora=True, **low, **attention))
    register("BERT, IA3", adapted(bert, "IA3Config", feedforward_modules=[], **attention))
    register("BERT, prompt tuning", adapted(bert, "PromptTuningConfig", task_type="SEQ_CLS", **virtual))
    register("BERT, prefix tuning", adapted(bert, "PrefixTuningConfig", task_type="SEQ_CLS", **virtual))
    register("BERT, LoHa", adapted(bert, "LoHaConfig", r=2, alpha=4, **attention))
    register("BERT, LoKr", adapted(bert, "LoKrConfig", r=2, alpha=4, **attention))
    register("BERT, OFT", adapted(bert, "OFTConfig", oft_block_size=4, **attention))
    conv1d = dict(target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    register("GPT-2, LoRA", adapted(gpt2, "LoraConfig", **low, **conv1d))
    register("GPT-2, prompt tuning", prompted(gpt2, "PromptTuningConfig", task_type="CAUSAL_LM", **virtual))
    register(
        "GPT-2, p-tuning",
        prompted(gpt2, "PromptEncoderConfig", task_type="CAUSAL_LM", encoder_hidden_size=WIDTH, **virtual),
    )
    register("GPT-2, prefix tuning", adapted(gpt2, "PrefixTuningConfig", task_type="CAUSAL_LM", **virtual))
    register(
        "GPT-2, prefix tuning with projection",
        adapted(
            gpt2,
            "PrefixTuningConfig",
            task_type="CAUSAL_LM",
            prefix_projection=True,
            encoder_hidden_size=WIDTH,
            **virtual,
        ),
    )
    register(
        "T5, LoRA", adapted(t5, "LoraConfig", target_modules=["q", "v"], task_type="SEQ_2_SEQ_LM", **low)
    )
    register(
        "T5, IA3",
        adapted(
            t5,
            "IA3Config",
            target_modules=["k", "v", "wo"],
            feedforward_modules=["wo"],
            task_type="SEQ_2_SEQ_LM",
        ),
    )
    register("T5, prefix tuning", adapted(t5, "PrefixTuningConfig", task_type="SEQ_2_SEQ_LM", **virtual))
    register(
        "Llama, LoRA",
        adapted(llama, "LoraConfig", target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **low),
    )
    register(
        "Llama, VeRA",
        adapted(llama, "VeraConfig", r=2, target_modules=["q_proj", "o_proj"], task_type="CAUSAL_LM"),
    )
    register(
        "Llama, adaption prompt",
        adapted(llama, "AdaptionPromptConfig", adapter_len=2, adapter_layers=2, task_type="CAUSAL_LM"),
    )


def prompted(base: Callable[[int], Built], config: str, **options: Any) -> Callable[[int], Built]:
    """A causal model behind virtual words, which have logits too."""

    def build(n: int) -> Built:
        model, _, batch = adapted(base, config, **options)(n)
        return model, next_words_prompted, batch

    return build


def next_words_prompted(model: Any, batch: dict[str, Tensor]) -> Tensor:
    ids, mask = batch["input_ids"], batch["attention_mask"]
    logits = model(**batch).logits[:, -ids.shape[1] :]
    return token_losses(logits[:, :-1], ids[:, 1:], mask[:, 1:])


# --- models in plain torch ----------------------------------------------------------------------------


class Through(nn.Module):
    """Holds layers and parameters by name and runs a function of them."""

    def __init__(self, forward: Callable[..., Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._forward = forward

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._forward(self, *inputs)


def plain(
    forward: Callable[..., Tensor], parts: Callable[[], dict[str, Any]], *inputs: Callable[[int], Tensor]
) -> Callable[[int], Built]:
    """A classifier that is a function of parts and inputs."""

    def build(n: int) -> Built:
        return Through(forward, **parts()), plain_classified, (*(x(n) for x in inputs), labels(n))

    return build


def param(*shape: int) -> nn.Parameter:
    return nn.Parameter(0.3 * torch.randn(shape))


def sequence(n: int) -> Tensor:
    return torch.randn(n, T, 8)


def head(width: int = 8) -> nn.Linear:
    return nn.Linear(width, CLASSES)


def masked_mean(h: Tensor, mask: Tensor) -> Tensor:
    kept = mask.to(h.dtype).unsqueeze(2)
    return (h * kept).sum(1) / kept.sum(1)


def frames(m: Any, x: Tensor) -> Tensor:
    """A video: frames folded into the batch, and their mean over time."""
    h = x.flatten(0, 1)
    h = F.relu(m.norm(m.first(h)))
    h = F.relu(m.second(h)).mean((2, 3))
    return m.head(h.unflatten(0, (len(x), -1)).mean(1))


def frames_reshaped(m: Any, x: Tensor) -> Tensor:
    """The same with sizes that are read and multiplied in Python."""
    b, t, c, height, width = x.shape
    h = F.relu(m.norm(m.first(x.reshape(b * t, c, height, width))))
    h = F.relu(m.second(h)).mean((2, 3))
    return m.head(h.view(b, t, -1).mean(1))


def frames_time_first(m: Any, x: Tensor) -> Tensor:
    """The same with time before the examples in the folded axis."""
    h = F.relu(m.norm(m.first(x.transpose(0, 1).flatten(0, 1))))
    h = F.relu(m.second(h)).mean((2, 3))
    return m.head(h.unflatten(0, (x.shape[1], len(x))).mean(0))


def video_parts() -> dict[str, Any]:
    return dict(
        first=nn.Conv2d(3, 8, 3, padding=1), norm=nn.GroupNorm(2, 8), second=nn.Conv2d(8, 8, 3), head=head()
    )


def video(n: int) -> Tensor:
    return torch.randn(n, 3, 3, 6, 6)


def time_major(m: Any, x: Tensor) -> Tensor:
    out, _ = m.rnn(x.transpose(0, 1))
    return m.head(out.mean(0))


def time_major_last(m: Any, x: Tensor) -> Tensor:
    _, h = m.rnn(x.transpose(0, 1))
    h = h[0] if isinstance(h, tuple) else h
    return m.head(h[-1])


def packed(m: Any, x: Tensor, sizes: Tensor) -> Tensor:
    """Sequences of different lengths, packed in any order; the final state and the outputs."""
    pack = pack_padded_sequence(x, sizes, batch_first=True, enforce_sorted=False)
    out, h = m.rnn(pack)
    h = h[0] if isinstance(h, tuple) else h
    whole, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
    return m.head(torch.cat([*h, whole.sum(1)], 1))


def packed_sorted(m: Any, x: Tensor, sizes: Tensor) -> Tensor:
    """Sequences that the model sorts by length, and sorts back."""
    order = sizes.argsort(descending=True)
    pack = pack_padded_sequence(x[order], sizes[order], batch_first=True)
    out, h = m.rnn(pack)
    h = h[0] if isinstance(h, tuple) else h
    whole, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
    back = order.argsort()
    return m.head(torch.cat([*h, whole.sum(1)], 1)[back])


def packed_list(m: Any, x: Tensor, sizes: Tensor) -> Tensor:
    """Lengths read as numbers, as many tutorials do."""
    pack = pack_padded_sequence(x, sizes.tolist(), batch_first=True, enforce_sorted=False)
    out, _ = m.rnn(pack)
    whole, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
    return m.head(whole.sum(1))


def recurrent(kind: Any, heads: int, **options: Any) -> Callable[[], dict[str, Any]]:
    return lambda: dict(rnn=kind(8, 6, **options), head=head(6 * heads))


def token_mlp(experts: int = 4) -> dict[str, Any]:
    return dict(
        gate=nn.Linear(8, experts),
        experts=nn.ModuleList(
            nn.Sequential(nn.Linear(8, 10), nn.GELU(), nn.Linear(10, 8)) for _ in range(experts)
        ),
        head=head(),
    )


def soft_mixture(m: Any, x: Tensor) -> Tensor:
    """All experts for all tokens, weighted by the gates."""
    gates = m.gate(x).softmax(-1)
    mixed = torch.stack([expert(x) for expert in m.experts], -1)
    return m.head((x + (mixed * gates.unsqueeze(-2)).sum(-1)).mean(1))


def top_mixture(m: Any, x: Tensor) -> Tensor:
    """All experts for all tokens, of which the best two have weights."""
    gates, best = m.gate(x).topk(2, -1)
    weights = (F.one_hot(best, len(m.experts)).to(x.dtype) * gates.softmax(-1).unsqueeze(-1)).sum(-2)
    mixed = torch.stack([expert(x) for expert in m.experts], -1)
    return m.head((x + (mixed * weights.unsqueeze(-2)).sum(-1)).mean(1))


def routed_mixture(m: Any, x: Tensor) -> Tensor:
    """Each expert on the tokens of the whole batch that chose it, added back at their places."""
    tokens = x.reshape(-1, x.shape[-1])
    gates, best = m.gate(tokens).topk(2, -1)
    gates = gates.softmax(-1)
    out = torch.zeros_like(tokens)
    for i, expert in enumerate(m.experts):
        rows, places = torch.where(best == i)
        out = out.index_add(0, rows, expert(tokens[rows]) * gates[rows, places].unsqueeze(1))
    return m.head((tokens + out).view_as(x).mean(1))


def masked_mixture(m: Any, x: Tensor) -> Tensor:
    """The same with boolean masks and assignment."""
    tokens = x.flatten(0, 1)
    gates, best = m.gate(tokens).softmax(-1).max(-1)
    out = torch.zeros_like(tokens)
    for i, expert in enumerate(m.experts):
        mask = best == i
        if mask.any():
            out[mask] = gates[mask].unsqueeze(1) * expert(tokens[mask])
    return m.head((tokens + out).view_as(x).mean(1))


def stacked_mixture(m: Any, x: Tensor) -> Tensor:
    """Experts' weights in one tensor, from which each token takes its own."""
    tokens = x.flatten(0, 1)
    gates, best = m.gate(tokens).softmax(-1).max(-1)
    h = torch.einsum("td,tdk->tk", tokens, m.wide[best])
    out = torch.einsum("tk,tkd->td", F.gelu(h), m.narrow[best])
    return m.head((tokens + gates.unsqueeze(1) * out).view_as(x).mean(1))


def checkpoints(reentrant: bool, m: Any, x: Tensor) -> Tensor:
    h = m.first(x)
    h = checkpoint(lambda h: torch.tanh(m.second(torch.relu(h))), h, use_reentrant=reentrant)
    h = checkpoint(lambda h: torch.tanh(m.third(h)), h, use_reentrant=reentrant)
    return m.head(h.mean(1))


def siamese(m: Any, left: Tensor, right: Tensor) -> Tensor:
    """Two inputs side by side in the batch."""
    h = torch.tanh(m.second(torch.relu(m.first(torch.cat([left, right])))))
    a, b = h.chunk(2)
    return m.head((a - b).abs())


def siamese_stacked(m: Any, left: Tensor, right: Tensor) -> Tensor:
    """Two inputs that alternate in the batch."""
    h = torch.tanh(m.second(torch.relu(m.first(torch.stack([left, right], 1).flatten(0, 1)))))
    return m.head((h[0::2] - h[1::2]).abs())


def many_crops(m: Any, x: Tensor) -> Tensor:
    """Several augmentations of each example, repeated along the batch; the mean of their logits."""
    again = x.repeat_interleave(3, 0)
    factors = torch.tensor([1.0, 0.5, -1.0], dtype=x.dtype).repeat(len(x)).view(-1, 1)
    h = torch.relu(m.first(again * factors))
    return m.head(torch.tanh(m.second(h))).view(len(x), 3, -1).mean(1)


def tiled_crops(m: Any, x: Tensor) -> Tensor:
    """The same with the augmentations outside the examples."""
    again = torch.cat([x, 0.5 * x, x.flip(1)])
    h = torch.relu(m.first(again))
    return torch.stack(m.head(torch.tanh(m.second(h))).split(len(x))).mean(0)


def two_layers() -> dict[str, Any]:
    return dict(first=nn.Linear(8, 10), second=nn.Linear(10, 8), head=head())


def three_layers() -> dict[str, Any]:
    return two_layers() | dict(third=nn.Linear(8, 8))


def attended(batch_first: bool, m: Any, x: Tensor, mask: Tensor) -> Tensor:
    h = x if batch_first else x.transpose(0, 1)
    out, _ = m.attention(h, h, h, key_padding_mask=~mask)
    h = m.norm(h + out)
    return m.head(masked_mean(h if batch_first else h.transpose(0, 1), mask))


def attention_parts(batch_first: bool) -> Callable[[], dict[str, Any]]:
    return lambda: dict(
        attention=nn.MultiheadAttention(8, 2, batch_first=batch_first), norm=nn.LayerNorm(8), head=head()
    )


def biased_attention() -> dict[str, Any]:
    attention = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True)
    return dict(attention=attention, norm=nn.LayerNorm(8), head=head())


def encoder_decoder(m: Any, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    causal = torch.ones(T, T, dtype=torch.bool).triu(1)
    memory = m.encoder(x, src_key_padding_mask=~mask)
    h = m.decoder(y, memory, tgt_mask=causal, memory_key_padding_mask=~mask)
    return m.head(h.mean(1))


def encoder_decoder_time_first(m: Any, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    x, y = x.transpose(0, 1), y.transpose(0, 1)
    memory = m.encoder(x, src_key_padding_mask=~mask)
    return m.head(m.decoder(y, memory, memory_key_padding_mask=~mask).mean(0))


def transformer_parts(batch_first: bool) -> Callable[[], dict[str, Any]]:
    def parts() -> dict[str, Any]:
        options: dict[str, Any] = dict(dropout=0.0, batch_first=batch_first)
        return dict(
            encoder=nn.TransformerEncoder(
                nn.TransformerEncoderLayer(8, 2, 12, **options), 1, enable_nested_tensor=False
            ),
            decoder=nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 12, **options), 1),
            head=head(),
        )

    return parts


def windows(m: Any, x: Tensor) -> Tensor:
    """Overlapping windows of a signal, by `Tensor.unfold`."""
    h = torch.relu(m.first(x.unfold(1, 4, 2)))
    return m.head(torch.tanh(m.second(h.flatten(1))))


def image_windows(m: Any, x: Tensor) -> Tensor:
    """Patches of an image, by `F.unfold`, and back by `F.fold`."""
    h = F.unfold(x, 3, padding=1).transpose(1, 2)
    h = torch.relu(m.first(h)).transpose(1, 2)
    return m.head(F.fold(h, x.shape[-2:], 1).mean((2, 3)))


def split_heads(x: Tensor, heads: int = 2) -> Tensor:
    return x.unflatten(2, (heads, -1))


def einsum_attention(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    q, k, v = (split_heads(each) for each in m.qkv(x).chunk(3, 2))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 2
    scores = scores.masked_fill(~mask[:, None, None], float("-inf"))
    out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2)
    return m.head(masked_mean(x + m.out(out), mask))


def einsum_weights(m: Any, x: Tensor) -> Tensor:
    """Projections by einsum with weights for each head."""
    q, k, v = (torch.einsum("btd,dhk->bhtk", x, w) for w in (m.q, m.k, m.v))
    out = (q @ k.transpose(2, 3)).softmax(-1) @ v
    return m.head(torch.einsum("bhtk,hkd->btd", out, m.o).mean(1))


def folded_attention(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    """Heads folded with the batch, as fairseq and many others do."""
    b, t, d = x.shape
    q, k, v = (
        each.view(b, t, 2, d // 2).transpose(1, 2).reshape(b * 2, t, d // 2) for each in m.qkv(x).chunk(3, 2)
    )
    hidden = (~mask).repeat_interleave(2, 0).unsqueeze(1)
    scores = torch.bmm(q, k.transpose(1, 2)).masked_fill(hidden, -1e9)
    out = torch.bmm(scores.softmax(-1), v).view(b, 2, t, d // 2).transpose(1, 2).reshape(b, t, d)
    return m.head(masked_mean(x + m.out(out), mask))


def rotary_attention(m: Any, x: Tensor) -> Tensor:
    q, k, v = (split_heads(each).transpose(1, 2) for each in m.qkv(x).chunk(3, 2))
    angles = torch.outer(torch.arange(x.shape[1], dtype=x.dtype), torch.tensor([1.0, 0.1], dtype=x.dtype))
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

    def rotate(t: Tensor) -> Tensor:
        a, b = t.chunk(2, -1)
        return t * cos + torch.cat([-b, a], -1) * sin

    out = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
    return m.head(m.out(out.transpose(1, 2).flatten(2)).mean(1))


def relative_attention(m: Any, x: Tensor) -> Tensor:
    """A learned bias for each distance and head, looked up at constant places, as the attention's mask."""
    q, k, v = (split_heads(each).transpose(1, 2) for each in m.qkv(x).chunk(3, 2))
    place = torch.arange(x.shape[1])
    bias = m.bias(place[None] - place[:, None] + T).permute(2, 0, 1).unsqueeze(0)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return m.head(m.out(out.transpose(1, 2).flatten(2)).mean(1))


def qkv_parts() -> dict[str, Any]:
    return dict(qkv=nn.Linear(8, 24), out=nn.Linear(8, 8), head=head())


def window_attention(m: Any, x: Tensor) -> Tensor:
    """Attention in windows that are folded with the batch, with a bias, and shifted back."""
    b, t, d = x.shape
    h = x.roll(-1, 1).view(b * t // 3, 3, d)
    q, k, v = (split_heads(each).transpose(1, 2) for each in m.qkv(h).chunk(3, 2))
    scores = q @ k.transpose(2, 3) + m.bias
    h = m.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
    return m.head((x + h.view(b, t, d).roll(1, 1)).mean(1))


def latent_queries(m: Any, x: Tensor) -> Tensor:
    """Learned queries, repeated for each example."""
    q = m.query.expand(len(x), -1, -1)
    out = F.scaled_dot_product_attention(q, m.k(x), m.v(x))
    return m.head((out + q).flatten(1))


def class_token(m: Any, x: Tensor) -> Tensor:
    h = torch.cat([m.token.repeat(len(x), 1, 1), x], 1) + m.places
    return m.head(torch.tanh(m.first(h))[:, 0])


def initial_state(m: Any, x: Tensor) -> Tensor:
    """A learned initial state for a recurrent layer."""
    _, h = m.rnn(x, m.state.unsqueeze(1).repeat(1, len(x), 1))
    return m.head(h[-1])


def hand_written_rnn(m: Any, x: Tensor) -> Tensor:
    """A cell in a loop over time, over whole columns of the batch."""
    h = x.new_zeros(len(x), 6)
    for step in x.unbind(1):
        h = m.cell(step, h)
    return m.head(h)


def filled_rnn(m: Any, x: Tensor) -> Tensor:
    """Outputs that are written into a buffer."""
    h, outs = torch.zeros(len(x), 6, dtype=x.dtype), torch.zeros(len(x), x.shape[1], 6, dtype=x.dtype)
    for t in range(x.shape[1]):
        h = m.cell(x[:, t], h)
        outs[:, t] = h
    return m.head(outs.mean(1))


def masked_tokens(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    """A layer on the tokens that are present only, all of the batch in one list."""
    h = torch.tanh(m.second(torch.relu(m.first(x[mask]))))
    rows = mask.nonzero()[:, 0]
    return m.head(torch.zeros(len(x), 8, dtype=h.dtype).index_add(0, rows, h))


def scattered_tokens(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    """The same, put back at their places."""
    h = torch.tanh(m.second(torch.relu(m.first(x[mask]))))
    out = torch.zeros_like(x)
    out[mask] = h
    return m.head(out.sum(1))


def graph(m: Any, x: Tensor, edges: Tensor) -> Tensor:
    """Graphs of one size as one large graph: nodes folded into the batch, edges with offsets."""
    n, nodes, _ = x.shape
    offset = torch.arange(n).view(-1, 1, 1) * nodes
    source, target = (edges + offset).permute(2, 0, 1).flatten(1)
    h = x.flatten(0, 1)
    for layer in (m.first, m.second):
        h = torch.relu(layer(h))
        h = h + torch.zeros_like(h).index_add(0, target, h[source])
    return m.head(h.view(n, nodes, -1).mean(1))


def segments(m: Any, x: Tensor, edges: Tensor) -> Tensor:
    """The same with `scatter_add`, and the mean over a graph by its number."""
    n, nodes, _ = x.shape
    offset = torch.arange(n).view(-1, 1, 1) * nodes
    source, target = (edges + offset).permute(2, 0, 1).flatten(1)
    h = torch.relu(m.first(x.flatten(0, 1)))
    h = h.scatter_add(0, target.unsqueeze(1).expand(-1, h.shape[1]), h[source])
    h = torch.relu(m.second(h))
    owner = torch.arange(n).repeat_interleave(nodes)
    return m.head(torch.zeros(n, 8, dtype=h.dtype).index_add(0, owner, h) / nodes)


def point_cloud(m: Any, x: Tensor) -> Tensor:
    """Nearest neighbours within a cloud, gathered by index."""
    near = torch.cdist(x, x).topk(3, largest=False).indices
    rows = torch.arange(len(x)).view(-1, 1, 1)
    h = torch.relu(m.first(x[rows, near] - x.unsqueeze(2))).amax(2)
    return m.head(torch.tanh(m.second(h)).amax(1))


def u_net(m: Any, x: Tensor) -> Tensor:
    """Down, up and across, as in segmentation and diffusion."""
    a = F.silu(m.norm(m.first(x)))
    b = F.silu(m.down(a))
    c = F.interpolate(b, scale_factor=2, mode="nearest")
    return m.last(torch.cat([a, m.up(c)], 1)).mean((2, 3))


def diffusion(n: int) -> Built:
    """Noise that the batch brings, scaled by a table at a time of each example, and a time embedding."""
    model = Through(
        _denoise, conv=nn.Conv2d(3, 8, 3, padding=1), time=nn.Linear(4, 8), out=nn.Conv2d(8, 3, 1)
    )
    table = torch.linspace(0.1, 0.9, 10, dtype=torch.float64)

    def loss(model: Any, batch: tuple[Tensor, ...]) -> Tensor:
        x, noise, time = batch
        a = table.to(x.dtype)[time].view(-1, 1, 1, 1)
        return (model(a * x + (1 - a) * noise, time) - noise).square().mean((1, 2, 3))

    return model, loss, (torch.randn(n, 3, 6, 6), torch.randn(n, 3, 6, 6), torch.randint(10, (n,)))


def _denoise(m: Any, x: Tensor, time: Tensor) -> Tensor:
    angles = time.to(x.dtype).unsqueeze(1) * torch.tensor([1.0, 0.1], dtype=x.dtype)
    embedded = m.time(torch.cat([angles.sin(), angles.cos()], 1))
    return m.out(F.silu(m.conv(x) + embedded[:, :, None, None]))


def factorization(m: Any, users: Tensor, items: Tensor) -> Tensor:
    """Click-through: embeddings of fields with offsets, pairwise products, and a bag."""
    h = m.table(users.unsqueeze(1) + torch.tensor([0, 10]))
    bag = F.embedding_bag(items, m.items.weight, mode="mean")
    pairs = 0.5 * (h.sum(1).square() - h.square().sum(1))
    return m.head(torch.cat([pairs, bag], 1))


def register_plain() -> None:
    """Adds models in plain torch."""
    mask, sizes = present, lengths
    for name, forward in [
        ("frames folded into the batch", frames),
        ("frames folded by sizes", frames_reshaped),
        ("frames folded, time first", frames_time_first),
    ]:
        register(f"video, {name}", plain(forward, video_parts, video))
    for kind in (nn.LSTM, nn.GRU):
        name = kind.__name__
        register(f"{name}, time major", plain(time_major, recurrent(kind, 2, bidirectional=True), sequence))
        register(
            f"{name}, time major, last state",
            plain(time_major_last, recurrent(kind, 1, num_layers=2), sequence),
        )
        both = dict(bidirectional=True)
        register(
            f"{name}, packed", plain(packed, recurrent(kind, 4, batch_first=True, **both), sequence, sizes)
        )
        register(f"{name}, packed, one direction", plain(packed, recurrent(kind, 2), sequence, sizes))
        register(f"{name}, packed, sorted", plain(packed_sorted, recurrent(kind, 4, **both), sequence, sizes))
    register("RNN, packed", plain(packed, recurrent(nn.RNN, 2), sequence, sizes))
    register(
        "LSTM, packed, lengths as numbers",
        plain(packed_list, recurrent(nn.LSTM, 1), sequence, sizes),
        expected="reads lengths of the batch as numbers",
    )
    register(
        "GRU, learned initial state",
        plain(
            initial_state,
            lambda: recurrent(nn.GRU, 1, batch_first=True)() | dict(state=param(1, 6)),
            sequence,
        ),
    )
    cell = lambda: dict(cell=nn.GRUCell(8, 6), head=head(6))  # noqa: E731
    register("GRU cell in a loop", plain(hand_written_rnn, cell, sequence))
    register("GRU cell, outputs in a buffer", plain(filled_rnn, cell, sequence))
    for name, forward in [
        ("soft", soft_mixture),
        ("best two with weights", top_mixture),
        ("rows of each expert", routed_mixture),
    ]:
        register(f"mixture of experts, {name}", plain(forward, token_mlp, sequence))
    register(
        "mixture of experts, masks of each expert",
        plain(masked_mixture, token_mlp, sequence),
        expected="asks whether any token of the batch chose an expert",
    )
    register(
        "mixture of experts, weights of each token",
        plain(
            stacked_mixture,
            lambda: dict(gate=nn.Linear(8, 4), wide=param(4, 8, 10), narrow=param(4, 10, 8), head=head()),
            sequence,
        ),
    )
    register("checkpointing, reentrant", plain(partial(checkpoints, True), three_layers, sequence))
    register("checkpointing, not reentrant", plain(partial(checkpoints, False), three_layers, sequence))
    vector = lambda n: torch.randn(n, 8)  # noqa: E731
    register("siamese, side by side", plain(siamese, two_layers, vector, vector))
    register("siamese, alternating", plain(siamese_stacked, two_layers, vector, vector))
    register("augmentations, repeated", plain(many_crops, two_layers, vector))
    register("augmentations, side by side", plain(tiled_crops, two_layers, vector))
    for first in (True, False):
        order = "batch first" if first else "time first"
        register(
            f"multi-head attention, {order}",
            plain(partial(attended, first), attention_parts(first), sequence, mask),
        )
    register("multi-head attention, biases", plain(partial(attended, True), biased_attention, sequence, mask))
    register(
        "transformer with decoder", plain(encoder_decoder, transformer_parts(True), sequence, sequence, mask)
    )
    register(
        "transformer with decoder, time first",
        plain(encoder_decoder_time_first, transformer_parts(False), sequence, sequence, mask),
    )
    register("windows of a signal", plain(windows, windows_parts, lambda n: torch.randn(n, 10)))
    register(
        "windows of an image",
        plain(
            image_windows,
            lambda: dict(first=nn.Linear(27, 8), head=head()),
            lambda n: torch.randn(n, 3, 6, 6),
        ),
    )
    register("einsum attention", plain(einsum_attention, qkv_parts, sequence, mask))
    register(
        "einsum with weights for each head",
        plain(
            einsum_weights,
            lambda: dict(q=param(8, 2, 4), k=param(8, 2, 4), v=param(8, 2, 4), o=param(2, 4, 8), head=head()),
            sequence,
        ),
    )
    register("heads folded with the batch", plain(folded_attention, qkv_parts, sequence, mask))
    register("rotary attention", plain(rotary_attention, qkv_parts, sequence))
    register(
        "relative position bias",
        plain(relative_attention, lambda: qkv_parts() | dict(bias=nn.Embedding(2 * T + 1, 2)), sequence),
    )
    register(
        "window attention", plain(window_attention, lambda: qkv_parts() | dict(bias=param(2, 3, 3)), sequence)
    )
    register(
        "learned queries",
        plain(
            latent_queries, lambda: dict(query=param(1, 2, 8), k=head8(), v=head8(), head=head(16)), sequence
        ),
    )
    register(
        "class token",
        plain(
            class_token,
            lambda: dict(token=param(1, 1, 8), places=param(T + 1, 8), first=head8(), head=head()),
            sequence,
        ),
    )
    register("tokens by a boolean mask", plain(masked_tokens, two_layers, sequence, mask))
    register("tokens by a boolean mask, put back", plain(scattered_tokens, two_layers, sequence, mask))
    edges = lambda n: torch.randint(T, (n, 7, 2))  # noqa: E731
    square = lambda: dict(first=head8(), second=head8(), head=head())  # noqa: E731
    register("graphs as one graph", plain(graph, square, sequence, edges))
    register("graphs as one graph, scatter_add", plain(segments, square, sequence, edges))
    register("point cloud", plain(point_cloud, square, sequence))
    register("U-Net", plain(u_net, unet_parts, lambda n: torch.randn(n, 3, 6, 6)))
    register("diffusion", diffusion)
    register(
        "click-through with offsets and a bag",
        plain(
            factorization,
            lambda: dict(table=nn.Embedding(20, 8), items=nn.Embedding(20, 8), head=head(16)),
            lambda n: torch.randint(10, (n,)),
            lambda n: torch.randint(20, (n, 4)),
        ),
    )


# --- what must be refused -----------------------------------------------------------------------------


def mixing(between: Callable[[Tensor], Tensor]) -> Callable[[int], Built]:
    """Two layers with something between them in which examples meet."""
    return plain(
        lambda m, x: m.head(torch.tanh(m.second(between(torch.tanh(m.first(x)))))),
        two_layers,
        lambda n: torch.randn(n, 8),
    )


def losing(change: Callable[[Tensor], Tensor]) -> Callable[[int], Built]:
    """Two layers, and losses that meet."""

    def build(n: int) -> Built:
        model, loss, batch = mixing(lambda h: h)(n)
        return model, lambda model, batch: change(loss(model, batch)), batch

    return build


def capacity(size: int, m: Any, x: Tensor) -> Tensor:
    """An expert takes the first tokens of the batch that chose it, and no more."""
    tokens = x.flatten(0, 1)
    gates, best = m.gate(tokens).softmax(-1).max(-1)
    chosen = F.one_hot(best, len(m.experts))
    kept = (chosen * (chosen.cumsum(0) <= size)).to(x.dtype)
    mixed = torch.stack([expert(tokens) for expert in m.experts], 1)
    out = (kept.unsqueeze(2) * mixed).sum(1) * gates.unsqueeze(1)
    return m.head((tokens + out).view_as(x).mean(1))


def wrong_axis(m: Any, x: Tensor) -> Tensor:
    """Attention that takes the examples for words."""
    return m.head(m.norm(x + m.attention(x, x, x)[0]).mean(1))


def not_sorted_back(m: Any, x: Tensor, sizes: Tensor) -> Tensor:
    order = sizes.argsort(descending=True)
    _, h = m.rnn(pack_padded_sequence(x[order], sizes[order], batch_first=True))
    return m.head(h[-1])


def across_windows(m: Any, x: Tensor) -> Tensor:
    """Windows that are shifted in the folded axis, so that the last of an example has words of the next."""
    h = x.flatten(0, 1).roll(-1, 0).unflatten(0, (-1, 3))
    return m.head(torch.tanh(m.first(h.flatten(1))).view(len(x), 2, -1).mean(1))


def wrong_owner(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    """Tokens that are added to the next example."""
    h = torch.tanh(m.second(torch.relu(m.first(x[mask]))))
    rows = (mask.nonzero()[:, 0] + 1) % len(x)
    return m.head(torch.zeros(len(x), 8, dtype=h.dtype).index_add(0, rows, h))


def contrastive(n: int) -> Built:
    """Other examples as negatives."""

    def loss(model: Any, batch: tuple[Tensor, ...]) -> Tensor:
        scores = model(batch[0]) @ model(batch[1]).T
        return F.cross_entropy(scores, torch.arange(len(scores)), reduction="none")

    return (
        nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)),
        loss,
        (torch.randn(n, 8), torch.randn(n, 8)),
    )


def clip_contrastive(n: int) -> Built:
    model, _, batch = clip_pairs(n)

    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        scores = model(**batch).logits_per_text
        return F.cross_entropy(scores, torch.arange(len(scores)), reduction="none")

    return model, loss, batch


def balanced(n: int) -> Built:
    """The loss that balances the experts is of the whole batch."""
    model, _, batch = ARCHITECTURES["Mixtral, batched"].factory(n)

    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        out = model(**batch, output_router_logits=True)
        ids, mask = batch["input_ids"], batch["attention_mask"]
        return token_losses(out.logits[:, :-1], ids[:, 1:], mask[:, 1:]) + out.aux_loss

    return model, loss, batch


def register_mixed() -> None:
    """Adds what must be refused, with the reason."""

    def add(name: str, factory: Callable[[int], Built], **options: Any) -> None:
        MIXED[name] = Architecture(factory, expected="mixes the examples of a batch", **options)

    between: dict[str, Callable[[Tensor], Tensor]] = {
        "mean of the batch": lambda h: h - h.mean(0),
        "mean of the batch, detached": lambda h: h - h.mean(0).detach(),
        "largest of the batch, detached": lambda h: h / h.detach().abs().max(),
        "statistics of the batch": lambda h: F.batch_norm(torch.stack([h, -h], 2), None, None, training=True)[
            ..., 0
        ],
        "softmax over the batch": lambda h: h.softmax(0) * h,
        "normalised over the batch": lambda h: F.normalize(h, dim=0),
        "neighbour in the batch": lambda h: h + h.roll(1, 0),
        "reversed batch": lambda h: h + 0.5 * h.flip(0),
        "sum so far over the batch": lambda h: h.cumsum(0),
        "sorted over the batch": lambda h: h.sort(0).values,
        "rank in the batch": lambda h: h * h.detach().argsort(0).argsort(0),
        "place in the batch": lambda h: h * torch.arange(len(h)).unsqueeze(1),
        "size of the batch": lambda h: h / len(h),
        "size of the batch, from its shape": lambda h: h * h.shape[0] ** -0.5,
        "similarity within the batch": lambda h: (h @ h.T).softmax(1) @ h,
        "sign of the batch": lambda h: h if h.detach().sum() > 0 else -h,
        "mean of a batch above four": lambda h: h - h.mean(0) if len(h) > 4 else h,
        "the fifth example for all": lambda h: h + h[4:].sum(0),
        "the first example for all": lambda h: h + h[:1],
        "the first example for all, detached": lambda h: h + h.detach()[0],
        "a whole batch as one row": lambda h: h + h.reshape(1, -1).mean(),
        "a convolution over the batch": lambda h: F.avg_pool1d(h.T.unsqueeze(0), 3, 1, 1)[0].T,
        "axes taken for each other": lambda h: h + h.flatten().view(h.shape[1], -1).T.reshape(h.shape),
    }
    for name, function in between.items():
        add(name, mixing(function))
    losses: dict[str, Callable[[Tensor], Tensor]] = {
        "losses: the hard half": lambda each: each * (each >= each.detach().median()),
        "losses: over their mean": lambda each: each / each.detach().mean(),
        "losses: the mean, expanded": lambda each: each.mean().expand(len(each)),
        "losses: of all, each with a share": lambda each: each / len(each),
        "losses: the largest": lambda each: each * (each == each.max()),
    }
    for name, function in losses.items():
        add(name, losing(function))
    add("experts with a capacity", plain(partial(capacity, 3), token_mlp, sequence))
    add(
        "experts with a capacity that three examples do not fill",
        plain(partial(capacity, 8), token_mlp, sequence),
    )
    add("attention over the examples", plain(wrong_axis, attention_parts(False), sequence))
    add("packed, not sorted back", plain(not_sorted_back, recurrent(nn.GRU, 1), sequence, lengths))
    add(
        "windows across examples",
        plain(across_windows, lambda: dict(first=nn.Linear(24, 8), head=head()), sequence),
    )
    add("tokens of another example", plain(wrong_owner, two_layers, sequence, present))
    add("negatives of the batch", contrastive)
    add("CLIP, negatives of the batch", clip_contrastive)
    add("Mixtral, balanced experts", balanced)
    resnet = ARCHITECTURES["ResNet, frozen statistics"].factory
    add("ResNet, statistics of the batch", resnet, frozen=False)


def head8() -> nn.Linear:
    return nn.Linear(8, 8)


def windows_parts() -> dict[str, Any]:
    return dict(first=nn.Linear(4, 6), second=nn.Linear(24, 8), head=head())


def unet_parts() -> dict[str, Any]:
    return dict(
        first=nn.Conv2d(3, 8, 3, padding=1),
        norm=nn.GroupNorm(2, 8),
        down=nn.Conv2d(8, 8, 3, 2, 1),
        up=nn.ConvTranspose2d(8, 8, 3, padding=1),
        last=nn.Conv2d(16, CLASSES, 1),
    )


register_plain()
register_encoders()
register_decoders()
register_translators()
register_vision()
register_others()
register_adapters()
register_mixed()


# --- the verdict --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What an engine made of an architecture.

    Attributes:
        outcome: "exact", "wrong", "refused" by the engine, or "failed" with an error that is no refusal.
        text: The message of a refusal or error, or where the largest error is.
        error: The largest relative error of a norm or a sum.
        idle: Trainable parameters without a gradient for any example: they prove nothing.
        trainable: How many trainable parameters there are.
        seconds: What building, plain autograd and the engine's answers took.
    """

    outcome: str
    text: str
    error: float
    idle: tuple[str, ...]
    trainable: int
    seconds: tuple[float, float, float]


def rows(batch: Batch, some: slice) -> Batch:
    """Some examples of a batch."""
    return map_tensors(lambda x: x[some], batch)


def one_by_one(model: nn.Module, loss: Loss, batch: Batch, n: int) -> Gradients:
    """The gradient of each example alone, by `backward`: models with a backward inside allow nothing else."""
    params: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    result = []
    for i in range(n):
        for p in params:
            p.grad = None
        with torch.enable_grad():
            loss(model, rows(batch, slice(i, i + 1))).sum().backward()
        result.append({p: torch.zeros_like(p) if p.grad is None else p.grad for p in params})
    for p in params:
        p.grad = None
    return result


def judged(architecture: Architecture, n: int = N, engine: str = "bookkeeping") -> Verdict:
    """Compares an engine with plain autograd: norms in a ball and around a centre, and weighted sums."""
    clock = [time.perf_counter()]
    model, loss, batch = architecture.build(n)
    clock.append(time.perf_counter())
    gradients = one_by_one(model, loss, batch, n)
    clock.append(time.perf_counter())
    ball, centered, _ = geometries(model)
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    idle = tuple(names[p] for p in gradients[0] if not any(each[p].abs().max() > 1e-12 for each in gradients))
    first = min(n - 1, 1)  # the second batch of the model is smaller, and all of its texts have padding
    outcome, text, error = "", "", 0.0
    try:
        found = []
        for geometry, some in ((ball, slice(n)), (centered, slice(first, n))):
            weights = some_weights(n - (some.start or 0))
            norms, sums = whitened_norms(gradients[some], geometry), summed(gradients[some], weights)
            fast = ENGINES[engine](model, loss, rows(batch, some))
            found.append(("the norms", _distance(fast.norms(geometry), norms, float(norms.min()))))
            size = max(float(value.abs().max()) for value in sums.values())
            for p, value in fast.weighted_sum(weights).items():
                scale = max(float(sums[p].abs().max()), 1e-3 * size)
                found.append((f"the sum of {names[p]}", _distance(value, sums[p], scale)))
        text, error = max(found, key=lambda each: each[1])
        outcome = "exact" if error <= architecture.tolerance else "wrong"
    except UnsupportedError as refusal:
        outcome, text = "refused", str(refusal)
    except Exception as failure:
        outcome, text = "failed", f"{type(failure).__name__}: {failure}"
    clock.append(time.perf_counter())
    seconds = (clock[1] - clock[0], clock[2] - clock[1], clock[3] - clock[2])
    return Verdict(outcome, text, error, idle, len(gradients[0]), seconds)


def _distance(actual: Tensor, expected: Tensor, scale: float) -> float:
    worst = float((actual - expected).abs().max()) / scale
    return worst if worst == worst else float("inf")  # NaN is no small error


def survey(*parts: str, n: int = N, engine: str = "bookkeeping") -> dict[str, Verdict]:
    """Prints what an engine makes of each architecture whose name has one of some parts in it."""
    torch.set_num_threads(1)
    verdicts = {}
    for name, architecture in (ARCHITECTURES | MIXED).items():
        if parts and not any(part.lower() in name.lower() for part in parts):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                verdict = judged(architecture, n, engine)
        except pytest.skip.Exception as absent:
            print(f"{name:42} skipped  {absent}")
            continue
        except Exception as error:  # the architecture itself does not work
            verdict = Verdict("broken", f"{type(error).__name__}: {error}", 0.0, (), 0, (0.0, 0.0, 0.0))
        verdicts[name] = verdict
        took = "/".join(f"{s:.2f}" for s in verdict.seconds)
        what = f"{verdict.error:.0e}, {verdict.text}" if verdict.error else verdict.text
        idle = f" [without gradient: {', '.join(verdict.idle)}]" if verdict.idle else ""
        print(f"{name:42} {verdict.outcome:8} {took:15} {what}{idle}", flush=True)
    counts: dict[str, int] = {}
    for verdict in verdicts.values():
        counts[verdict.outcome] = counts.get(verdict.outcome, 0) + 1
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return verdicts


if __name__ == "__main__":
    survey(*sys.argv[1:])
