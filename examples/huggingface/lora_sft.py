"""Trains adapters of a language model privately with TRL's SFTTrainer.

    pip install 'adamas[trl]'
    python examples/huggingface/lora_sft.py

The notes are made up, and the model is small and random, so the script runs offline in seconds. For your own
model, use `AutoModelForCausalLM.from_pretrained(...)` and its tokenizer.
"""

import random
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from adamas.integrations.transformers import Privacy, PrivateTrainerMixin

RECORDS, EPSILON, STEPS = 200, 8.0, 20
SYMPTOMS = ["cough", "fever", "rash", "headache"]
ADVICE = {"cough": "syrup", "fever": "rest", "rash": "cream", "headache": "water"}


class PrivateSFT(PrivateTrainerMixin, SFTTrainer):
    """SFTTrainer that trains privately."""


def notes(count: int, seed: int) -> Dataset:
    """Makes prompts and the completions that count in the loss."""
    drawn = random.Random(seed)
    found = drawn.choices(SYMPTOMS, k=count)
    return Dataset.from_list(
        [{"prompt": f"patient has {one} give", "completion": f" {ADVICE[one]}"} for one in found]
    )


words = ["<pad>", "<eos>", "<unk>", "patient", "has", "give", *SYMPTOMS, *ADVICE.values()]
plain = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
plain.pre_tokenizer = WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
)

with tempfile.TemporaryDirectory() as folder:
    trainer = PrivateSFT(
        model,
        SFTConfig(
            folder,
            per_device_train_batch_size=10,  # processed at once
            gradient_accumulation_steps=4,  # times that: the expected size of a batch
            max_steps=STEPS,
            learning_rate=1e-2,
            max_length=16,
            logging_steps=5,
            save_steps=10,  # each checkpoint holds the ledger
            use_cpu=not torch.cuda.is_available(),
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=notes(RECORDS, seed=1),
        eval_dataset=notes(20, seed=2),  # public data: the guarantee does not cover evaluation
        processing_class=tokenizer,
        peft_config=LoraConfig(r=8, target_modules="all-linear"),
        privacy=Privacy(epsilon=EPSILON),
    )
    trainer.train()
    print(trainer.evaluate())

print(trainer.privacy_statement())
