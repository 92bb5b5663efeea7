"""Small random models, data sets and arguments for trainers of transformers and TRL."""

import datasets
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    TrainingArguments,
)

from adamas.integrations.transformers import Privacy, PrivateTrainer

VOCABULARY = 43


def bert(*, dropout=0.1):
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=32,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )


def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            intermediate_size=16,
            max_position_embeddings=32,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
        )
    )


def tokenizer():
    words = ["<pad>", "<eos>", "<unk>"] + [f"w{i}" for i in range(VOCABULARY - 3)]
    plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def labelled(n=24, seed=1, longest=9):
    """Makes labelled texts of different lengths, with a column that no model takes."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(n):
        length = int(torch.randint(3, longest, (), generator=generator))
        ids = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
        rows.append({"input_ids": ids, "attention_mask": [1] * length, "label": ids[0] % 2, "note": "x"})
    return datasets.Dataset.from_list(rows)


def texts(n=24, seed=1):
    """Makes prompts and completions of different lengths."""
    generator = torch.Generator().manual_seed(seed)

    def text(most):
        length = int(torch.randint(2, most, (), generator=generator))
        return " ".join(f"w{i}" for i in torch.randint(0, 40, (length,), generator=generator).tolist())

    return datasets.Dataset.from_list([{"prompt": text(6), "completion": " " + text(9)} for _ in range(n)])


SMALL = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "learning_rate": 1e-2,
    "max_steps": 6,
    "warmup_steps": 2,
    "save_steps": 3,
    "logging_steps": 2,
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
}
PRIVACY = {"noise_multiplier": 1.0, "accountant": "rdp", "seed": 5}


def arguments(folder, **changes):
    return TrainingArguments(**(SMALL | {"output_dir": str(folder)} | changes))


def trainer(folder, *, model=None, data=None, privacy=None, kind=PrivateTrainer, arguments_=None, **more):
    """Makes a private trainer; `more` are its own arguments."""
    return kind(
        bert() if model is None else model,
        arguments(folder, **(arguments_ or {})),
        train_dataset=labelled() if data is None else data,
        processing_class=tokenizer(),
        privacy=Privacy(**(PRIVACY if privacy is None else privacy)),
        **more,
    )


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])
