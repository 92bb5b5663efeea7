"""Film reviews: their split, their tokens, and the tokens in the cache."""

import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from adamas import data
from adamas.data import reviews, tokens

tokenizers = pytest.importorskip("tokenizers")


def test_a_table_of_reviews_is_read_by_source():
    table = 'text,label,source\n"Good, ""really"".\nYes.",1,imdb\nbad,0,rotten_tomatoes\nworse,0,imdb\n'
    assert reviews.read_reviews(table, "imdb") == [('Good, "really".\nYes.', 1), ("worse", 0)]
    assert reviews.read_reviews(table, "rotten_tomatoes") == [("bad", 0)]


def test_equal_texts_are_never_in_both_parts():
    texts = [f"review {number % 500}" + " " * (number // 500) for number in range(2000)]
    texts += [f"review<br /><br />{number}" for number in range(500)]
    train, test = reviews.split_reviews([(text, 1) for text in texts])
    keys = [[reviews.normalised(text) for text, _ in part] for part in (train, test)]
    assert not set(keys[0]) & set(keys[1])
    assert sorted(keys[0] + keys[1]) == sorted({reviews.normalised(text) for text in texts})
    assert 60 <= len(test) <= 140  # 100 of 500 expected, with bounds of 4 standard deviations


def test_the_part_of_a_text_depends_on_the_text_alone():
    examples = [(f"text {number}", number % 2) for number in range(200)]
    train, test = reviews.split_reviews(examples)
    backwards = reviews.split_reviews(reversed(examples))
    flipped = reviews.split_reviews([(text, 1 - label) for text, label in examples])
    assert [set(part) for part in backwards] == [set(train), set(test)]
    assert [text for text, _ in flipped[1]] == [text for text, _ in test]


def test_only_the_text_data_sets_have_texts():
    with pytest.raises(ValueError, match="'imdb', 'rotten-tomatoes'"):
        data.texts("mnist")


# --- tokens ---------------------------------------------------------------------------------------------


@pytest.fixture
def vocabulary(tmp_path, monkeypatch):
    """Replaces the vocabulary of MiniLM by one of seven tokens, with an empty cache."""
    words = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "good": 4, "bad": 5, "##ly": 6}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    calls = []

    def files():
        calls.append(1)
        return tmp_path

    monkeypatch.setattr(tokens, "minilm_files", files)
    monkeypatch.setenv("ADAMAS_HOME", str(tmp_path / "cache"))
    files.calls = calls
    files.cache = tmp_path / "cache"
    return files


def test_texts_become_ids_between_special_tokens_with_padding(vocabulary):
    ids = tokens.token_ids(["good badly other", "good " * 500, ""], "here")
    assert ids.shape == (3, 128)
    assert ids.dtype == torch.int64
    assert ids[0].tolist() == [2, 4, 5, 6, 1, 3] + [0] * 122
    assert ids[1].tolist() == [2] + [4] * 126 + [3]
    assert ids[2].tolist() == [2, 3] + [0] * 126


def test_long_texts_keep_their_start_or_both_ends(vocabulary):
    text = "good good good other bad bad"
    assert tokens.token_ids([text], "here", 5).tolist() == [[2, 4, 4, 4, 3]]
    assert tokens.token_ids([text], "here", 6, "ends").tolist() == [[2, 4, 4, 5, 5, 3]]
    assert tokens.token_ids([text], "here", 5, "ends").tolist() == [[2, 4, 5, 5, 3]]
    assert tokens.token_ids([text], "here", 9, "ends").tolist() == [[2, 4, 4, 4, 1, 5, 5, 3, 0]]


@pytest.mark.parametrize(("options", "name"), [((3,), "length"), ((0,), "length"), ((9, "middle"), "keep")])
def test_bad_lengths_are_refused_by_name(vocabulary, options, name):
    with pytest.raises(ValueError, match=name):
        tokens.token_ids(["good"], "here", *options)


def test_unknown_options_of_a_data_set_are_refused_by_name():
    with pytest.raises(TypeError, match=r"'digits' has.*length"):
        data.load("digits", length=64)


def test_ids_are_computed_once(vocabulary):
    first = tokens.token_ids(["good", "bad"], "here")
    assert torch.equal(tokens.token_ids(["good", "bad"], "here"), first)
    assert len(vocabulary.calls) == 1
    tokens.token_ids(["bad"], "there")
    assert len(vocabulary.calls) == 2
    assert all(path.name.startswith("tokens-") for path in vocabulary.cache.iterdir())


def test_damaged_ids_are_computed_again(vocabulary):
    texts = ["good", "bad"]
    first = tokens.token_ids(texts, "here")
    (file,) = vocabulary.cache.iterdir()
    whole = file.read_bytes()
    damages = [whole[:-10], b"", whole[:-4] + b"\1\0\0\0"]
    for number, damage in enumerate(damages, 2):
        file.write_bytes(damage)
        assert torch.equal(tokens.token_ids(texts, "here"), first)
        assert len(vocabulary.calls) == number
    save_file({"others": load_file(file)["ids"]}, file)
    assert torch.equal(tokens.token_ids(texts, "here"), first)
    assert file.read_bytes() == whole


def test_a_missing_tokenizer_says_how_to_install_it(vocabulary, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(RuntimeError, match=r"tokenizers .* pip install 'adamas\[experiments\]'"):
        tokens.token_ids(["good"], "here")


# --- both together --------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path, monkeypatch, vocabulary):
    """Replaces the package by forty reviews, one of them twice, and returns their counts of labels."""
    rows = [("good " * (1 + number), 1) if number % 2 else ("bad " * (1 + number), 0) for number in range(40)]
    lines = [f"{text},{label},imdb" for text, label in [*rows, ("good<br />good", 1)]]
    (tmp_path / reviews._FILE).write_text("\n".join(["text,label,source", *lines]))
    monkeypatch.setattr(reviews, "pip_files", lambda *_: tmp_path)
    counts = tuple(
        [sum(label == kind for _, label in part) for kind in (0, 1)] for part in reviews.split_reviews(rows)
    )
    monkeypatch.setattr(reviews, "_COUNTS", {"imdb": counts})
    return counts


def test_reviews_are_loaded_as_ids_with_labels(table):
    loaded = data.load("imdb")
    assert (loaded.name, loaded.input_shape, loaded.classes) == ("imdb", (128,), 2)
    assert len(loaded.train) + len(loaded.test) == 40
    for part in (loaded.train, loaded.test):
        ids, labels = part.tensors
        assert torch.equal(ids[:, 1], 5 - labels)  # "good" is 4 and "bad" is 5
    train_texts, train_labels, test_texts, test_labels = data.texts("imdb")
    assert torch.equal(train_labels, loaded.train.tensors[1])
    assert torch.equal(test_labels, loaded.test.tensors[1])
    assert not set(train_texts) & set(test_texts)
    assert all("good" in text for text, label in zip(train_texts, train_labels, strict=True) if label)


def test_wrong_counts_of_labels_are_refused(table, monkeypatch):
    monkeypatch.setattr(reviews, "_COUNTS", {"imdb": ([1, 2], [3, 4])})
    with pytest.raises(RuntimeError, match=r"Expected \(\[1, 2\], \[3, 4\]\) reviews of imdb"):
        data.texts("imdb")
