"""Examples are joined if they have one form, so that none decides how the others are read."""

from collections import UserList

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

import adamas
from adamas.loading import Loader
from adamas.sampling import Poisson

pytestmark = [
    # Warnings of machines with fewer cores than workers, and of Python versions that discourage forks.
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:This process .*is multi-threaded"),
    pytest.mark.filterwarnings("ignore:In future, it will be an error for 'np.bool_'"),  # NumPy 1.26 in torch
]


OTHER_FORMS = {
    "a key less": ({"x": 1.0}, {"x": 1.0, "w": 2.0}),
    "a key more": ({"x": 1.0, "w": 2.0}, {"x": 1.0}),
    "another order": ({"w": 2.0, "x": 1.0}, {"x": 1.0, "w": 2.0}),
    "another order in a nest": ([{"w": 2.0, "x": 1.0}], [{"x": 1.0, "w": 2.0}]),
    "another number": ({"x": 1}, {"x": 1.0}),
    "a truth value": ({"x": True}, {"x": 1}),
    "another dtype": ({"x": torch.tensor(1.0)}, {"x": torch.tensor(1.0, dtype=torch.float64)}),
    "a number of NumPy": ({"x": np.float32(1.0)}, {"x": 1.0}),
    "another number in a sequence": (UserList([1]), UserList([1.0])),
}


@pytest.mark.parametrize("place", [0, 5])
@pytest.mark.parametrize("name", OTHER_FORMS)
def test_an_example_of_another_form_does_not_change_how_others_are_read(name, place):
    other, usual = OTHER_FORMS[name]
    with pytest.raises((adamas.UnsupportedError, KeyError)) as error:
        drawn_data(Loader([other if i == place else usual for i in range(8)], Poisson(8, 8, seed=0)))
    if isinstance(error.value, KeyError):  # torch's own, for a key that the first example has
        assert name.startswith("a key")
    else:
        assert "one form" in str(error.value)


def test_workers_refuse_an_example_of_another_form():
    examples = [{"x": 1 if i == 5 else 1.0} for i in range(8)]
    with pytest.raises(adamas.UnsupportedError, match="one form"):
        drawn_data(Loader(examples, Poisson(8, 8, seed=0), num_workers=2))


def drawn_data(loader):
    return [data for batch in loader.batches(0, 1) for data, _ in batch]


def test_examples_of_one_form_are_joined_as_torch_does():
    examples = [{"x": i / 2, "n": i, "nest": [torch.ones(2), np.float32(i)]} for i in range(8)]
    ((data),) = drawn_data(Loader(examples, Poisson(8, 8, seed=0)))
    torch.testing.assert_close(data, default_collate(examples), rtol=0, atol=0)


ONE_FORM = {
    "whole numbers": ((torch.ones(2), 1), (torch.ones(2), np.int64(1))),
    "numbers": ({"x": 1.0}, {"x": np.float64(1.0)}),
    "truth values": ({"x": True}, {"x": np.bool_(True)}),
    "lists and tuples": ((1.0, 2), [1.0, 2]),
    "arrays in files": (np.ones(2), np.ones(2).view(np.memmap)),
}


@pytest.mark.parametrize("place", [0, 5])
@pytest.mark.parametrize("name", ONE_FORM)
def test_examples_that_are_joined_alike_in_any_order_are_of_one_form(name, place):
    other, usual = ONE_FORM[name]
    examples = [other if i == place else usual for i in range(8)]
    ((data),) = drawn_data(Loader(examples, Poisson(8, 8, seed=0)))
    ((alike),) = drawn_data(Loader([usual] * 8, Poisson(8, 8, seed=0)))
    torch.testing.assert_close(data, alike, rtol=0, atol=0)


@pytest.mark.parametrize("text", ["longer", np.str_("longer")])
def test_texts_of_other_lengths_are_refused_as_texts(text):
    examples = [{"x": 1.0, "text": np.str_("a") if i else text} for i in range(8)]
    with pytest.raises(adamas.UnsupportedError, match=r"batch\['text'\].*texts become tokens"):
        drawn_data(Loader(examples, Poisson(8, 8, seed=0)))


class Words(list):
    """A text, for which a user tells default_collate how to join it."""


def padded(batch, **_):
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(words) for words in batch], batch_first=True)


def ranked(batch, **_):
    return padded(batch).argsort(0)


@pytest.mark.parametrize(
    "wrap", [lambda words: words, lambda words: {"x": (words, 1)}], ids=["alone", "nest"]
)
def test_a_function_that_is_registered_for_a_type_is_not_taken_for_torchs_own(wrap, monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, Words, ranked)
    examples = [wrap(Words([3 * i % 7, 2])) for i in range(8)]
    with pytest.raises(adamas.UnsupportedError, match=r"collate_fn=lambda examples"):
        drawn_data(Loader(examples, Poisson(8, 8, seed=0)))
    compared = {"collate_fn": lambda examples: default_collate(examples)}
    with pytest.raises(adamas.UnsupportedError, match="mixes the examples"):
        drawn_data(Loader(examples, Poisson(8, 8, seed=0), **compared))
    monkeypatch.setitem(default_collate_fn_map, Words, padded)
    assert len(drawn_data(Loader(examples, Poisson(8, 8, seed=0), **compared))) == 1


def test_a_function_that_is_registered_for_another_type_changes_nothing(monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, Words, ranked)
    ((data),) = drawn_data(Loader([[1.0, 2]] * 8, Poisson(8, 8, seed=0)))
    torch.testing.assert_close(data, default_collate([[1.0, 2]] * 8), rtol=0, atol=0)
