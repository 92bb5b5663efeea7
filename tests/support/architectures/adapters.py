"""Adapters of `peft` on small models."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from tests.support.architectures.batches import next_words, token_losses
from tests.support.architectures.hugging_face import texts
from tests.support.architectures.registry import ARCHITECTURES, WIDTH, Built, register


def adapted(base: Callable[[int], Built], config: str, **options: Any) -> Callable[[int], Built]:
    """Puts an adapter of `peft` on a model, and freezes everything else."""

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
    """Puts virtual words in front of a causal model. They have logits, too."""

    def build(n: int) -> Built:
        model, _, batch = adapted(base, config, **options)(n)
        return model, next_words_prompted, batch

    return build


def next_words_prompted(model: Any, batch: dict[str, Tensor]) -> Tensor:
    ids, mask = batch["input_ids"], batch["attention_mask"]
    logits = model(**batch).logits[:, -ids.shape[1] :]
    return token_losses(logits[:, :-1], ids[:, 1:], mask[:, 1:])
