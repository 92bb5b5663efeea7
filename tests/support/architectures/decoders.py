"""Language models."""

from typing import Any

import torch

from tests.support.architectures.batches import next_words, next_words_unmasked
from tests.support.architectures.hugging_face import texts
from tests.support.architectures.registry import TOLERANCE, WIDTH, register


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
    # The norms or scans of these models compute in float32, whatever the type of the model.
    narrow = {"Gemma", "Gemma2", "Mamba", "Mamba2", "RecurrentGemma"}
    for name, kind, options in small:
        loss = next_words_unmasked if kind == "Rwkv" else next_words
        factory = texts(f"{kind}ForCausalLM", f"{kind}Config", loss=loss, **options)
        expected = "fast"
        if options.get("experts_implementation") == "eager":
            expected = "runs the experts that any token of the batch chose"
        elif kind == "RecurrentGemma":
            expected = "keeps the last state of a batch on a module"
        register(name, factory, tolerance=1e-6 if kind in narrow else TOLERANCE, expected=expected)
    experts = grouped | moe("grouped_mm") | dict(num_local_experts=4)
    register(
        "Mixtral, grouped",
        texts("MixtralForCausalLM", "MixtralConfig", loss=next_words, **experts),
        dtype=torch.float32,  # the only type of torch's grouped product
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
