"""No message of another package tells about a single private record."""

import logging
import warnings

import pytest

pytest.importorskip("trl")

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from adamas.integrations.transformers import Privacy
from adamas.integrations.transformers.quiet import PREPARING, quiet
from tests.support.tiny_sft import PrivateSFT, sft_arguments
from tests.support.tiny_trainers import PRIVACY, bert, llama, trainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def letters():
    """A tokenizer of letters that joins s and e, and warns of more than 20 tokens."""
    vocabulary = {"<pad>": 0, "<eos>": 1, "<unk>": 2, "se": 3}
    vocabulary |= {letter: 4 + i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz ")}
    plain = Tokenizer(models.BPE(vocab=vocabulary, merges=[("s", "e")], unk_token="<unk>"))
    return PreTrainedTokenizerFast(
        tokenizer_object=plain,
        **{"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>", "model_max_length": 20},
    )


class Heard(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


@pytest.fixture
def heard():
    """What reaches handlers of the packages and of the root."""
    handler = Heard()
    names = ("transformers", "trl", None)
    for name in names:
        logging.getLogger(name).addHandler(handler)
    yield handler.texts
    for name in names:
        logging.getLogger(name).removeHandler(handler)


def test_preparing_texts_tells_nothing_of_a_single_one(tmp_path, heard):
    rows = [{"prompt": "abc ", "completion": "dog"}] * 7
    rows += [{"prompt": "a patient with a secret s", "completion": "ecret"}]
    PrivateSFT(
        llama(),
        sft_arguments(tmp_path, max_length=20),
        train_dataset=Dataset.from_list(rows),
        processing_class=letters(),
        privacy=Privacy(**PRIVACY),
    )
    assert not [text for text in heard if "prompt" in text or "sequence length" in text]
    letters()("a" * 42)
    assert "(42 > 20)" in heard[-1]  # it is as loud as before


class Collate:
    """Tokenizes a batch of texts, which warns of those that are too long."""

    def __call__(self, rows):
        batch = letters()([row["text"] for row in rows], padding=True, return_tensors="pt")
        batch.pop("token_type_ids", None)
        return {**batch, "labels": torch.zeros(len(rows), dtype=torch.long)}


@pytest.mark.parametrize("workers", [0, 1])
def test_loading_a_batch_tells_nothing_of_its_records(tmp_path, heard, capfd, workers):
    made = trainer(
        tmp_path,
        model=bert(),
        data=Dataset.from_list([{"text": "a" * (3 + 20 * (i == 5))} for i in range(8)]),
        data_collator=Collate(),
        arguments_={
            **{"max_steps": 4, "save_strategy": "no", "remove_unused_columns": False},
            "dataloader_num_workers": workers,
        },
    )
    made.train()
    assert made.run.steps_done == 4
    assert not [text for text in heard if "sequence length" in text]
    assert "sequence length" not in capfd.readouterr().err


def test_messages_that_do_not_read_records_stay(heard):
    with quiet(PREPARING):
        logging.getLogger("transformers.trainer").warning("an argument")
        logging.getLogger("trl.trainer.sft_trainer").warning("a record")
        with quiet(PREPARING):
            pass
        logging.getLogger("trl.trainer.sft_trainer").warning("a record")
    assert set(heard) == {"an argument"}


def test_warnings_of_these_modules_are_dropped_and_others_are_not():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with quiet(PREPARING):
            warnings.warn_explicit("a record", UserWarning, "f.py", 1, "trl.trainer.sft_trainer")
            warnings.warn_explicit("other", UserWarning, "f.py", 1, "transformers.trainer")
        warnings.warn_explicit("after", UserWarning, "f.py", 1, "trl.trainer.sft_trainer")
    assert [str(one.message) for one in seen] == ["other", "after"]
