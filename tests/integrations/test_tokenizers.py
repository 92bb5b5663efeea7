"""A tokenizer in a collate_fn carries nothing from one record to the next."""

import pytest
import torch

import adamas
from adamas import UnsupportedError, rules
from adamas._guards.collate import Apart
from adamas._guards.memory import Memory
from adamas.integrations import losses
from tests.support.tiny_transformers import FIRST, datasets, made, tokenizer, tokenizers

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]
RARE = "zeta"
OPTIONS = {"batch_size": 8, "steps": 2, "noise_multiplier": 1.0, "seed": 0, "accountant": "rdp"} | {
    "delta": 1e-3,
    "progress": False,
}
TOO_LONG = "sequence-length-is-longer-than-the-specified-maximum"


class Carrying:
    """A collate_fn that writes into its tokenizer at a rare word, and tells it by a token of each text.

    Args:
        write: Writes into the tokenizer, given the text.
        read: Tells whether it was written.
    """

    def __init__(self, write, read):
        self.tokenizer, self.write, self.read = tokenizer(), write, read

    def __call__(self, rows):
        for row in rows:
            if RARE in row["text"]:
                self.write(self.tokenizer, row["text"])
        first = "w9" if self.read(self.tokenizer) else "w8"
        # Tokens of the words alone: no setting of the tokenizer changes by this.
        ids = [[self.tokenizer.convert_tokens_to_ids(w) for w in (first, "w5", "w6")] for _ in rows]
        return {"input_ids": torch.tensor(ids), "labels": torch.tensor([row["label"] for row in rows])}


def rows(*words):
    return [{"text": f"{word} w{FIRST}", "label": 1} for word in words]


def native(tok):
    return tok.backend_tokenizer


def replace_model(tok, text):
    words = native(tok).get_vocab(with_added_tokens=False)
    words[text.split()[0]] = words.pop("w30")
    native(tok).model = tokenizers.models.WordLevel(words, unk_token="[UNK]")


def set_part(name, make):
    return lambda tok, _: setattr(native(tok), name, make())


REFUSED = {
    "a flag of its own": (
        lambda tok, text: tok.deprecation_warnings.update({text.split()[0]: True}),
        lambda tok: RARE in tok.deprecation_warnings,
        "deprecation_warnings",
    ),
    "tokens": (
        lambda tok, text: tok.add_tokens(text.split()),
        lambda tok: RARE in tok.get_vocab(),
        "_tokenizer",
    ),
    "a kind of token": (
        lambda tok, _: native(tok).add_special_tokens(["w30"]),
        lambda tok: any(t.content == "w30" for t in native(tok).get_added_tokens_decoder().values()),
        "_tokenizer",
    ),
    "another vocabulary": (replace_model, lambda tok: RARE in tok.get_vocab(), "_tokenizer"),
    "an option of the model": (
        lambda tok, _: setattr(native(tok).model, "unk_token", "w7"),
        lambda tok: native(tok).model.unk_token == "w7",
        "_tokenizer",
    ),
    "a normalizer": (
        set_part("normalizer", lambda: tokenizers.normalizers.Replace("a", RARE)),
        lambda tok: native(tok).normalizer is not None,
        "_tokenizer",
    ),
    "a splitter": (
        set_part("pre_tokenizer", lambda: tokenizers.pre_tokenizers.Whitespace()),
        lambda tok: "Whitespace()" in str(native(tok).pre_tokenizer),
        "_tokenizer",
    ),
}
PUT_BACK = {
    "a flag of transformers": (
        lambda tok, _: tok.deprecation_warnings.update({TOO_LONG: True}),
        lambda tok: tok.deprecation_warnings.get(TOO_LONG, False),
    ),
    "padding": (
        lambda tok, _: native(tok).enable_padding(length=77),
        lambda tok: (native(tok).padding or {}).get("length") == 77,
    ),
    "truncation": (
        lambda tok, _: native(tok).enable_truncation(77),
        lambda tok: (native(tok).truncation or {}).get("max_length") == 77,
    ),
    "special tokens": (
        lambda tok, _: setattr(native(tok), "encode_special_tokens", True),
        lambda tok: native(tok).encode_special_tokens,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_write_into_the_tokenizer_is_refused_at_the_rare_record(name):
    write, read, where = REFUSED[name]
    apart = Apart(Carrying(write, read))
    apart.compare(rows("w5", "w6"), [0])
    with pytest.raises(UnsupportedError, match=rf"collate_fn changes 'collate_fn\.tokenizer\.{where}"):
        apart.compare(rows(RARE), [0])


@pytest.mark.parametrize("name", PUT_BACK)
def test_what_a_use_of_the_tokenizer_changes_is_put_back_after_it(name):
    write, read = PUT_BACK[name]
    collate = Carrying(write, read)
    apart = Apart(collate)
    before = apart.compare(rows("w5", "w6"), [0]).data["input_ids"]
    apart.compare(rows(RARE), [0])
    assert torch.equal(apart.compare(rows("w5", "w6"), [0]).data["input_ids"], before)
    write(collate.tokenizer, RARE)  # not within a call: it would carry
    collate.write = lambda *_: None
    if "flag" not in name:
        assert not torch.equal(collate(rows("w5", "w6"))["input_ids"], before)


def test_a_data_set_may_use_the_tokenizer_of_the_collate_function_with_other_settings():
    tok = tokenizer()

    class Texts(torch.utils.data.Dataset):
        def __len__(self):
            return 16

        def __getitem__(self, i):
            text = " ".join(f"w{FIRST + j}" for j in range(1 + i % 5))
            tok(text, truncation=True, max_length=2 + i % 3)  # changes the settings between the batches
            return {"text": text, "label": i % 3}

    def collate(rows):
        texts = [row["text"] for row in rows]
        batch = tok(texts, padding=True, truncation=True, max_length=4, return_tensors="pt")
        labels = torch.tensor([row["label"] for row in rows])
        return {name: batch[name] for name in ("input_ids", "attention_mask")} | {"labels": labels}

    model = made("bert classes")
    run = adamas.make_private(
        *(model, rules.AdamBC(model.parameters(), lr=1e-2), Texts(), losses.for_model(model)),
        **OPTIONS | {"collate_fn": collate},
    )
    for _ in run:
        pass
    assert run.steps_done == 2


def test_settings_are_as_before_a_call_that_fails():
    def write(tok, _):
        native(tok).enable_padding(length=77)
        raise ValueError("no such word")

    collate = Carrying(write, lambda _: False)
    native(collate.tokenizer).enable_truncation(5)
    with pytest.raises(ValueError, match="no such word"):
        Apart(collate).compare(rows(RARE), [0])
    assert native(collate.tokenizer).padding is None
    assert native(collate.tokenizer).truncation["max_length"] == 5


@pytest.mark.parametrize("name", ["a flag of its own", "tokens"])
def test_a_run_with_a_tokenizer_that_learns_is_refused_before_a_release(name):
    data = datasets.Dataset.from_list(rows(*["w5", "w6", RARE, "w7"] * 4))
    model = made("bert classes")
    rule = rules.AdamBC(model.parameters(), lr=1e-2)
    with pytest.raises(UnsupportedError, match=REFUSED[name][2]):
        adamas.make_private(
            *(model, rule, data, losses.for_model(model)),
            **OPTIONS | {"collate_fn": Carrying(*REFUSED[name][:2])},
        )


def test_tokens_that_are_added_to_a_long_vocabulary_are_seen():
    words = {f"w{i}": i for i in range(20_000)}
    one = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    memory = Memory({"tokenizer": one}, long=False)
    assert memory.change() is None
    one.add_tokens([RARE])
    assert memory.change() == "tokenizer"


def test_parts_of_tokenizers_alone_are_seen_too():
    token, part = tokenizers.AddedToken("a"), tokenizers.pre_tokenizers.Metaspace()
    memory = Memory({"token": token, "part": part}, long=False)
    assert memory.change() is None
    part.replacement = "x"
    assert memory.change() == "part"
    part.replacement = "▁"
    assert memory.change() is None
    token.content = RARE
    assert memory.change() == "token"


def test_a_part_that_is_written_in_python_is_refused():
    class Splits:
        def pre_tokenize(self, text):
            pass

    one = tokenizer()
    native(one).pre_tokenizer = tokenizers.pre_tokenizers.PreTokenizer.custom(Splits())
    with pytest.raises(UnsupportedError, match=r"'tokenizer\._tokenizer' is of type Tokenizer.*may remember"):
        Memory({"tokenizer": one}, long=False)
