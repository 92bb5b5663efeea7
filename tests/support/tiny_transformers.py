"""Small models of `transformers` with random weights, a tokenizer, and texts of several lengths.

Importing this module skips the tests of a file where a package is not installed. Nothing is downloaded.
"""

import os
from typing import Any

import pytest
import torch
from torch import Tensor

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the first import of transformers

transformers: Any = pytest.importorskip("transformers")
datasets: Any = pytest.importorskip("datasets")
tokenizers: Any = pytest.importorskip("tokenizers")

PADDING, MASK, FIRST, WORDS, CLASSES = 0, 4, 5, 31, 3
LAYERS: dict[str, Any] = dict(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24
)
TEXT: dict[str, Any] = LAYERS | dict(
    vocab_size=WORDS, max_position_embeddings=32, pad_token_id=PADDING, bos_token_id=2, eos_token_id=3
)
NARROW: dict[str, Any] = dict(vocab_size=WORDS, d_model=16, decoder_start_token_id=2, pad_token_id=PADDING)
GPT2: dict[str, Any] = dict(
    vocab_size=WORDS, n_positions=32, n_embd=16, n_layer=2, n_head=2, pad_token_id=PADDING
) | dict(num_labels=CLASSES, bos_token_id=2, eos_token_id=3)
LLAMA = TEXT | dict(num_key_value_heads=1, num_labels=CLASSES)

# name -> class, its configuration, and options of the configuration
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert classes": ("BertForSequenceClassification", "BertConfig", TEXT | {"num_labels": CLASSES}),
    "bert number": ("BertForSequenceClassification", "BertConfig", TEXT | {"num_labels": 1}),
    "bert numbers": (
        "BertForSequenceClassification",
        "BertConfig",
        TEXT | {"num_labels": CLASSES, "problem_type": "regression"},
    ),
    "bert labels": (
        "BertForSequenceClassification",
        "BertConfig",
        TEXT | {"num_labels": CLASSES, "problem_type": "multi_label_classification"},
    ),
    "bert tokens": ("BertForTokenClassification", "BertConfig", TEXT | {"num_labels": CLASSES}),
    "bert masked": ("BertForMaskedLM", "BertConfig", TEXT),
    "bert answers": ("BertForQuestionAnswering", "BertConfig", TEXT),
    "bert choices": ("BertForMultipleChoice", "BertConfig", TEXT),
    "gpt2 words": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "gpt2 classes": ("GPT2ForSequenceClassification", "GPT2Config", GPT2),
    "llama words": ("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "llama tied words": ("LlamaForCausalLM", "LlamaConfig", LLAMA | {"tie_word_embeddings": True}),
    "llama classes": ("LlamaForSequenceClassification", "LlamaConfig", LLAMA),
    "t5 texts": (
        "T5ForConditionalGeneration",
        "T5Config",
        NARROW | dict(d_kv=8, d_ff=24, num_layers=1, num_heads=2),
    ),
    "bart texts": (
        "BartForConditionalGeneration",
        "BartConfig",
        NARROW
        | dict(encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2)
        | dict(encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=32),
    ),
    "vit classes": (
        "ViTForImageClassification",
        "ViTConfig",
        LAYERS | dict(image_size=8, patch_size=4, num_labels=CLASSES),
    ),
}


def made(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """Makes a model in training mode, without dropout."""
    kind, config, options = MODELS[name]
    settings = getattr(transformers, config)(**options)
    for key, value in list(vars(settings).items()):
        if "drop" in key and isinstance(value, float):
            setattr(settings, key, 0.0)
    torch.manual_seed(0)
    return getattr(transformers, kind)(settings).to(dtype).train()


def batch_for(name: str, n: int = 3, tokens: int = 7, seed: int = 1) -> dict[str, Tensor]:
    """Makes a batch of padded texts, or of images, with the targets that a model needs."""
    draw = torch.Generator().manual_seed(seed)
    target = name.rpartition(" ")[2]
    if name == "vit classes":
        return {
            "pixel_values": torch.randn(n, 3, 8, 8, generator=draw).double(),
            "labels": torch.arange(n) % CLASSES,
        }
    ids = torch.randint(FIRST, WORDS, (n, tokens), generator=draw)
    lengths = tokens - torch.arange(n) % 3
    seen = (torch.arange(tokens) < lengths[:, None]).long()
    ids = torch.where(seen == 1, ids, PADDING)
    batch = {"input_ids": ids, "attention_mask": seen}
    words = torch.where(seen == 1, ids, -100)
    if target == "answers":
        return batch | {"start_positions": torch.arange(n) % 3, "end_positions": lengths - 1}
    if target == "choices":
        both = {key: torch.stack([value, value.flip(1)], 1) for key, value in batch.items()}
        return both | {"labels": torch.arange(n) % 2}
    labels = {
        "classes": torch.arange(n) % CLASSES,
        "number": torch.randn(n, generator=draw).double(),
        "numbers": torch.randn(n, CLASSES, generator=draw).double(),
        "labels": torch.randint(0, 2, (n, CLASSES), generator=draw).double(),
        "tokens": torch.where(seen == 1, ids % CLASSES, -100),
        "masked": torch.where(torch.rand(words.shape, generator=draw) < 0.5, words, -100),
        "words": words,
        "texts": words[:, :5],
    }[target]
    if target == "masked":
        labels[:, 0] = ids[:, 0]
    return batch | {"labels": labels}


def example_of(batch: dict[str, Tensor], i: int) -> dict[str, Tensor]:
    """Returns one example as a batch of one."""
    return {key: value[i : i + 1] for key, value in batch.items()}


def tokenizer() -> Any:
    """Makes a tokenizer of words."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = special + [f"w{i}" for i in range(FIRST, WORDS)]
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(model),
        **{f"{token[1:-1].lower()}_token": token for token in special},
    )


def texts(n: int, labels: str = "classes", seed: int = 0, longest: int = 6) -> Any:
    """Makes a data set of texts of two tokens or more; labels are "classes", "tokens", "words" or "none"."""
    draw = torch.Generator().manual_seed(seed)
    rows = []
    for i in range(n):
        length = 2 + i % (longest - 1)
        ids = torch.randint(FIRST, WORDS, (length,), generator=draw).tolist()
        row: dict[str, Any] = {"input_ids": ids, "attention_mask": [1] * length}
        if labels == "classes":
            row["label"] = i % CLASSES
        elif labels == "tokens":
            row["labels"] = [-100, *(word % CLASSES for word in ids[1:])]
        elif labels == "words":
            row["labels"] = ids[:3]
        rows.append(row)
    return datasets.Dataset.from_list(rows)
