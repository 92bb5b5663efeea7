"""Data sets are loaded by name, and validation sets are held out of the training examples."""

import sys

import pytest
import torch
from torch.utils.data import TensorDataset

from adamas import data
from adamas.data import Data


def test_digits_have_a_fixed_split_with_all_classes():
    digits = data.load("digits")
    assert len(digits.train) + len(digits.test) == 1797
    assert set(digits.test.tensors[1].tolist()) == set(range(10))
    assert digits.train.tensors[0].aminmax() == (-1, 1)


def test_the_documented_data_sets_are_available():
    assert set(data.DATASETS) == {
        *("digits", "mnist", "fashion-mnist", "cifar10", "imdb", "rotten-tomatoes"),
        *("adult", "cora", "citeseer", "pubmed", "ogbn-arxiv"),
    }


@pytest.mark.parametrize("name", ["imagenet", "mnist/test", "/validation", ""])
def test_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(ValueError, match="'digits', 'mnist'"):
        data.load(name)


def test_a_missing_optional_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(RuntimeError, match=r"scikit-learn .* pip install 'adamas\[experiments\]'"):
        data.load("digits")


# --- validation -----------------------------------------------------------------------------------------


def numbered(train, test=10):
    """Makes examples whose values are 0, 1, ..., first those for training and then those for testing."""
    numbers = torch.arange(train + test)
    labels = numbers % 2
    return Data(
        name="numbers",
        train=TensorDataset(numbers[:train], labels[:train]),
        test=TensorDataset(numbers[train:], labels[train:]),
        input_shape=(),
        classes=2,
    )


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_a_validation_set_is_held_out_of_the_training_set(share):
    full = numbered(1000)
    held_out = full.with_validation(share)
    train, validation = held_out.train.tensors[0].tolist(), held_out.test.tensors[0].tolist()
    assert len(validation) == 1000 * share
    assert sorted(train + validation) == list(range(1000))  # disjoint, complete, no test example
    assert train == sorted(train)
    assert (held_out.name, held_out.input_shape, held_out.classes) == ("numbers/validation", (), 2)
    for part in (held_out.train, held_out.test):
        assert torch.equal(part.tensors[1], part.tensors[0] % 2)  # labels stay with their examples


def test_a_validation_set_is_fixed_and_does_not_depend_on_labels():
    full = numbered(200)
    values, labels = full.train.tensors
    other = Data("other", TensorDataset(values, 1 - labels), full.test, (), 2)
    first = full.with_validation().test.tensors[0]
    assert torch.equal(first, full.with_validation().test.tensors[0])
    assert torch.equal(first, other.with_validation().test.tensors[0])
    # Another choice would make published numbers incomparable.
    assert first.tolist() == [
        *(13, 23, 24, 25, 33, 48, 50, 57, 62, 65, 82, 88, 99, 116, 121, 128, 142, 162, 178, 198),
    ]


def test_a_smaller_validation_set_is_a_subset_of_a_larger_one():
    full = numbered(300)
    small, large = (set(full.with_validation(share).test.tensors[0].tolist()) for share in (0.1, 0.3))
    assert small < large


def test_a_validation_set_must_leave_examples_on_both_sides():
    with pytest.raises(ValueError, match="share=1"):
        numbered(20).with_validation(1)
    with pytest.raises(ValueError, match="0 of 3 would be held out"):
        numbered(3).with_validation(0.1)


def test_validation_sets_are_loaded_by_name():
    digits, held_out = data.load("digits"), data.load("digits/validation")
    assert held_out.name == "digits/validation"
    assert len(held_out.train) + len(held_out.test) == len(digits.train)
    assert torch.equal(held_out.test.tensors[0], digits.with_validation().test.tensors[0])
