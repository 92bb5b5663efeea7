"""Data sets of `datasets` and collators of `transformers` work as they are; the others are refused."""

import copy
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import adamas
from adamas import UnsupportedError, rules
from adamas.integrations import losses
from tests.support import promised_runs
from tests.support.tiny_transformers import FIRST, MASK, WORDS, datasets, made, texts, tokenizer, transformers

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]
N = promised_runs.N
COLLATORS = {
    "classes": ("bert classes", "classes", lambda tok: transformers.DataCollatorWithPadding(tok)),
    "tokens": ("bert tokens", "tokens", lambda tok: transformers.DataCollatorForTokenClassification(tok)),
    "next words": (
        "gpt2 words",
        "none",
        lambda tok: transformers.DataCollatorForLanguageModeling(tok, mlm=False),
    ),
    "masked words": ("bert masked", "none", lambda tok: transformers.DataCollatorForLanguageModeling(tok)),
    "translation": ("bart texts", "words", lambda tok: transformers.DataCollatorForSeq2Seq(tok)),
}


def make_run(model, dataset, collate_fn=None, **options):
    options = {"batch_size": 8, "steps": 2, "noise_multiplier": 1.0, "seed": 0} | options
    return adamas.make_private(
        *(model, rules.AdamBC(model.parameters(), lr=1e-2), dataset, losses.for_model(model)),
        **{"collate_fn": collate_fn, "delta": 1e-3, "accountant": "rdp", "progress": False} | options,
    )


def weights_after(run):
    for _ in run:
        pass
    return nn.utils.parameters_to_vector(run.model.parameters()).detach()


@pytest.mark.parametrize("name", COLLATORS)
def test_a_collator_trains_on_a_data_set_as_it_is_and_with_tensors(name):
    kind, labels, collator = COLLATORS[name]
    dataset = texts(N, labels)
    outcomes = []
    for data in (dataset, dataset.with_format("torch")):
        run = make_run(made(kind), data, collator(tokenizer()))  # a new tokenizer: its first use counts
        assert run.engine == "bookkeeping"
        before = nn.utils.parameters_to_vector(run.model.parameters()).detach()
        outcomes.append(weights_after(run))
        assert not torch.equal(before, outcomes[-1])
    assert torch.equal(*outcomes)


def test_the_masks_of_a_language_model_are_those_of_the_collator():
    run = make_run(made("bert masked"), texts(N, "none"), COLLATORS["masked words"][2](tokenizer()))
    seen = [data for batch in run.batches() for data, _ in batch]
    ids, labels = (torch.cat([data[name].flatten() for data in seen]) for name in ("input_ids", "labels"))
    assert (ids[labels != -100] == MASK).any()
    assert (ids[labels == -100] != MASK).all()


def test_words_may_become_tokens_in_the_collate_function():
    tok = tokenizer()
    tok.model_max_length = 4  # a longer text makes the tokenizer note that it has warned

    def collate(rows):
        batch = tok([row["text"] for row in rows], padding=True, return_tensors="pt")
        batch.pop("token_type_ids", None)
        batch["labels"] = torch.tensor([row["label"] for row in rows])
        return batch

    lengths = [1 + i % 6 for i in range(N)]
    dataset = datasets.Dataset.from_dict(
        {
            "text": [" ".join(f"w{FIRST + j}" for j in range(k)) for k in lengths],
            "label": [k % 3 for k in lengths],
        }
    )
    assert make_run(made("bert classes"), dataset, collate).engine == "bookkeeping"


def test_padded_columns_need_no_collator_with_tensors_and_a_remedy_without():
    def pad(row):
        return {name: [*row[name], *[0] * 6][:6] for name in ("input_ids", "attention_mask")}

    datasets.disable_progress_bars()
    dataset = texts(N).map(pad).rename_column("label", "labels")
    weights = [
        weights_after(make_run(made("bert classes"), data, collate))
        for data, collate in (
            (dataset.with_format("torch"), None),
            (dataset, transformers.default_data_collator),
        )
    ]
    assert torch.equal(*weights)
    with pytest.raises(TypeError, match=r'with_format\("torch"\)'):
        make_run(made("bert classes"), dataset)


# --- refusals ---------------------------------------------------------------------------------------------


def refused(dataset, collate_fn, match, error=TypeError, kind="bert classes"):
    model = made(kind)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=match):
        make_run(model, dataset, collate_fn)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_collection_of_data_sets_is_refused():
    both = datasets.DatasetDict(train=texts(N), test=texts(N))
    refused(both, None, r"DatasetDict of 'train', 'test'.*data\['train'\]")


def test_a_stream_is_refused():
    refused(texts(N).to_iterable_dataset(), None, "map-style.*streaming=True")
    refused(texts(N).with_format("torch").to_iterable_dataset(), None, "map-style.*streaming=True")


def test_a_column_of_text_is_refused_with_its_name():
    dataset = texts(N).add_column("text", ["some words"] * N)
    refused(dataset, transformers.DataCollatorWithPadding(tokenizer()), r"remove_columns\(\['text'\]\)")


def test_a_column_that_the_model_does_not_take_is_refused_with_its_name():
    class NarrowForSequenceClassification(transformers.BertForSequenceClassification):
        def forward(self, input_ids=None, attention_mask=None):
            return super().forward(input_ids=input_ids, attention_mask=attention_mask)

    dataset = texts(N).add_column("number", list(range(N)))
    model = made("bert classes")
    model.__class__ = NarrowForSequenceClassification
    with pytest.raises(TypeError, match=r"no 'number'.*remove_columns\(\['number'\]\)"):
        make_run(model, dataset, transformers.DataCollatorWithPadding(tokenizer()))


def test_texts_of_several_lengths_need_a_collator():
    for dataset in (texts(N), texts(N).with_format("torch")):
        refused(dataset, None, "collate_fn that pads.*DataCollatorWithPadding")


def test_a_collator_with_a_seed_of_its_own_is_refused():
    seeded = transformers.DataCollatorForLanguageModeling(tokenizer(), seed=1)
    refused(texts(N, "none"), seeded, "leave out the seed", UnsupportedError, "bert masked")


# --- attacks: the influence of one record -----------------------------------------------------------------


def influence_of(odd, kind, labels, loss=None, model=None, collator=transformers.DataCollatorWithPadding):
    """Returns how far the last record, which `odd` changes, moves the sum of all."""
    rows = texts(N, labels).to_list()
    for row in rows:
        if "label" in row:
            row["label"] = float(row["label"]) if kind.endswith("number") else row["label"]
    odd(rows[-1])
    model = model or made(kind)
    run = promised_runs.made(
        model, rows, loss or losses.for_model(model), collate_fn=collator(tokenizer()), steps=1
    )
    return promised_runs.influence(run, N - 1)


def of_length(row, n, word=FIRST):
    row["input_ids"], row["attention_mask"] = [word] * n, [1] * n
    if "labels" in row:
        row["labels"] = [0] * n


def causal(tok):
    return transformers.DataCollatorForLanguageModeling(tok, mlm=False)


def test_an_ordinary_record_has_the_influence_of_the_whole_ball():
    assert influence_of(lambda row: None, "bert classes", "classes") == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("value", "lowest"), [(1e4, 0.99), (1e30, 0.0), (float("inf"), 0.0)])
def test_a_huge_target_is_clipped(value, lowest):
    moved = influence_of(lambda row: row.update(label=value), "bert number", "classes")
    assert lowest <= moved <= promised_runs.LIMIT


def test_a_target_that_is_no_number_has_no_influence():
    assert influence_of(lambda row: row.update(label=float("nan")), "bert number", "classes") == 0


@pytest.mark.parametrize(
    ("kind", "labels", "collator", "reduction"),
    [
        ("bert classes", "classes", transformers.DataCollatorWithPadding, "mean"),
        ("bert tokens", "tokens", transformers.DataCollatorForTokenClassification, "sum"),
        ("gpt2 words", "none", causal, "sum"),
        ("llama tied words", "none", causal, "mean"),
        ("bart texts", "words", transformers.DataCollatorForSeq2Seq, "mean"),
    ],
)
def test_a_very_long_text_is_clipped_and_does_not_move_the_others(kind, labels, collator, reduction):
    loss = losses.for_model(made(kind), reduction=reduction)
    moved = influence_of(lambda row: of_length(row, 30), kind, labels, loss, collator=collator)
    assert 0.9 < moved <= promised_runs.LIMIT


def test_a_record_without_labels_has_no_influence_even_if_it_is_the_longest():
    def unlabelled(row):
        of_length(row, 30)
        row["labels"] = [-100] * 30

    assert (
        influence_of(
            unlabelled, "bert tokens", "tokens", collator=transformers.DataCollatorForTokenClassification
        )
        < 1e-4
    )


def test_a_record_whose_logits_are_not_numbers_has_no_influence():
    model = made("bert classes")
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[WORDS - 1] = float("nan")
    rows = [row for row in texts(4 * N).to_list() if WORDS - 1 not in row["input_ids"]][:N]
    of_length(rows[-1], 5, WORDS - 1)
    run = promised_runs.made(
        model,
        rows,
        losses.classification,
        collate_fn=transformers.DataCollatorWithPadding(tokenizer()),
        steps=1,
    )
    assert losses.classification(model, run.loader.fetch(np.arange(N))).isnan().tolist() == [False] * (
        N - 1
    ) + [True]
    assert promised_runs.influence(run, N - 1) == 0


# --- the page ---------------------------------------------------------------------------------------------


def test_the_code_on_the_page_trains_within_its_budget():
    page = (Path(__file__).parents[2] / "docs" / "losses.md").read_text()
    names = {}
    datasets.disable_progress_bars()
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(block, names)
    assert names["loss"] is losses.classification
    assert names["run"].engine == "bookkeeping"
    assert 2.9 < names["run"].epsilon() <= 3.0


def test_the_page_lists_every_loss():
    page = (Path(__file__).parents[2] / "docs" / "losses.md").read_text()
    assert re.findall(r"^\| `(\w+)` \| (?:`\.|with)", page, flags=re.MULTILINE) == list(losses.LOSSES)


def test_a_tokenizer_that_pads_at_the_start_is_refused_with_the_remedy():
    left = tokenizer()
    left.padding_side = "left"
    refused(texts(N), transformers.DataCollatorWithPadding(left), "padding_side = 'right'", UnsupportedError)
