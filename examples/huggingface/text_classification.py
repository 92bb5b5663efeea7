"""Trains a text classifier privately with the Trainer of transformers.

    pip install 'adamas[transformers]'
    python examples/huggingface/text_classification.py

The texts are made up, and the model is small and random, so the script runs offline in seconds. For your own
model, use `AutoModelForSequenceClassification.from_pretrained(...)` and its tokenizer.
"""

import random
import tempfile

from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    TrainingArguments,
)

from adamas.integrations.transformers import Privacy, PrivateTrainer

RECORDS, EPSILON, EPOCHS = 1000, 8.0, 3
GOOD = ["fresh", "friendly", "quick", "lovely", "warm"]
BAD = ["stale", "rude", "slow", "awful", "cold"]
REST = ["the", "food", "staff", "room", "was", "and", "very", "rather"]


def texts(count: int, seed: int) -> Dataset:
    """Makes labelled reviews: neutral words, and three words of one kind."""
    drawn = random.Random(seed)
    rows = []
    for _ in range(count):
        label = drawn.randrange(2)
        words = drawn.choices(REST, k=drawn.randrange(1, 5)) + drawn.choices(GOOD if label else BAD, k=3)
        drawn.shuffle(words)
        rows.append({"text": " ".join(words), "label": label})
    return Dataset.from_list(rows)


words = ["[PAD]", "[UNK]", *GOOD, *BAD, *REST]
plain = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
plain.pre_tokenizer = WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]")
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
)


def encode(row: dict[str, object]) -> dict[str, object]:
    """Tokenizes a text."""
    return dict(tokenizer(row["text"]))


private = texts(RECORDS, seed=1).map(encode)
public = texts(200, seed=2).map(encode)  # public data: the guarantee does not cover evaluation


def accuracy(predictions: tuple) -> dict[str, float]:
    """Returns the share of right answers."""
    logits, labels = predictions
    return {"accuracy": float((logits.argmax(1) == labels).mean())}


with tempfile.TemporaryDirectory() as folder:
    trainer = PrivateTrainer(
        model,
        TrainingArguments(
            folder,
            per_device_train_batch_size=50,  # processed at once
            gradient_accumulation_steps=2,  # times that: the expected size of a batch
            num_train_epochs=EPOCHS,
            learning_rate=1e-2,
            warmup_steps=4,
            eval_strategy="epoch",
            logging_strategy="epoch",
            save_strategy="epoch",  # each checkpoint holds the ledger
            dataloader_pin_memory=False,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=private,
        eval_dataset=public,
        processing_class=tokenizer,
        compute_metrics=accuracy,
        privacy=Privacy(epsilon=EPSILON),
    )
    trainer.train()

print(trainer.privacy_statement())
