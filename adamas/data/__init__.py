"""Data sets by name, as tensors, with a fixed split into training and test examples."""

from collections.abc import Callable
from typing import Any

from adamas import _validate
from adamas.data.adult import adult
from adamas.data.base import Data
from adamas.data.cache import cache_folder
from adamas.data.cifar10 import cifar10
from adamas.data.cora import cora
from adamas.data.digits import digits
from adamas.data.fashion_mnist import fashion_mnist
from adamas.data.graph import GraphData
from adamas.data.minilm import minilm_files
from adamas.data.mnist import mnist
from adamas.data.ogbn import ogbn_arxiv
from adamas.data.planetoid import citeseer, pubmed
from adamas.data.power_law import power_law_graph
from adamas.data.reviews import imdb, rotten_tomatoes, texts

DATASETS: dict[str, Callable[..., Data]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "imdb": imdb,
    "rotten-tomatoes": rotten_tomatoes,
    "adult": adult,
    "cora": cora,
    "citeseer": citeseer,
    "pubmed": pubmed,
    "ogbn-arxiv": ogbn_arxiv,
}
"""Data sets by name."""

VALIDATION = "/validation"
"""Suffix of a data set's name: held-out training examples replace the test examples."""


def load(name: str, **options: Any) -> Data:
    """Loads a data set by its name in `DATASETS`, and fetches it if it is not in the cache.

    With the suffix `/validation`, a tenth of the training examples is held out and replaces the test
    examples, see `Data.with_validation`. Reviews have the options `length` and `keep`; Cora, Citeseer and
    PubMed have `split`, `split_seed` and `normalize`; ogbn-arxiv has `directed`.

    Example:
        >>> from adamas import data
        >>> digits = data.load("digits")
        >>> len(digits.train), len(digits.test), digits.input_shape, digits.classes
        (1438, 359, (1, 8, 8), 10)
        >>> held_out = data.load("digits/validation")
        >>> len(held_out.train), len(held_out.test)
        (1294, 144)
    """
    plain = name.removesuffix(VALIDATION)
    _validate.one_of(DATASETS, data=plain)
    try:
        data = DATASETS[plain](**options)
    except TypeError as error:
        if not options:
            raise
        raise TypeError(f"Expected options that the data set {plain!r} has: {error}.") from error
    return data if plain == name else data.with_validation()


__all__ = [
    "DATASETS",
    "VALIDATION",
    "Data",
    "GraphData",
    "cache_folder",
    "load",
    "minilm_files",
    "power_law_graph",
    "texts",
]
