"""Loading: micro-batches hold exactly the examples drawn, with any number of workers."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import adamas
from adamas import rules
from adamas.loading import Batch, Loader, dataset_length
from adamas.sampling import Draw, Poisson, Shuffled, TruncatedPoisson

pytestmark = [
    # Warnings of machines with fewer cores than workers, and of Python versions that discourage forks.
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:This process .*is multi-threaded"),
]


def numbers(n=60):
    return TensorDataset(torch.arange(n), torch.arange(n) * 10)


class Squares(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        assert isinstance(index, int)
        return {"number": torch.tensor(index), "nested": [torch.full((2,), index**2)], "half": index / 2}


class Shifted(TensorDataset):
    """A subclass whose own `__getitem__` takes one index."""

    def __getitem__(self, index):
        assert isinstance(index, int)
        return self.tensors[0][index] + 100


def read(batch):
    return [(data, padding) for data, padding in batch]


def drawn(loader, first, end):
    """Lists the first tensor and the padding of each micro-batch, for each batch."""
    return [[(data[0].tolist(), padding) for data, padding in batch] for batch in loader.batches(first, end)]


def expected(sampler, first, end, size):
    result = []
    for step in range(first, end):
        draw = sampler.indices(step)
        n = len(draw.indices)
        is_padding = np.arange(n) >= n - draw.padding
        result.append(
            [
                (draw.indices[i : i + size].tolist(), int(is_padding[i : i + size].sum()))
                for i in range(0, n, size)
            ]
        )
    return result


SAMPLINGS = [
    pytest.param(Poisson(60, 10, seed=0), id="poisson"),
    pytest.param(Poisson(60, 1, seed=0), id="often-empty"),
    pytest.param(TruncatedPoisson(60, 10, 14, seed=0), id="truncated"),
    pytest.param(Shuffled(60, 25, seed=0), id="shuffled"),
]


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("sampler", SAMPLINGS)
def test_micro_batches_cover_the_draw_exactly(sampler, size):
    loader = Loader(numbers(), sampler, micro_batch_size=size)
    assert drawn(loader, 0, 12) == expected(sampler, 0, 12, size)


def test_without_a_micro_batch_size_the_batch_is_one_piece():
    sampler = Poisson(60, 10, seed=0)
    batches = drawn(Loader(numbers(), sampler), 0, 5)
    assert [len(batch) for batch in batches] == [1] * 5
    assert batches == expected(sampler, 0, 5, 60)


@given(n=st.integers(0, 30), padding=st.integers(0, 30), size=st.integers(1, 40))
def test_padding_is_counted_in_the_micro_batch_that_holds_it(n, padding, size):
    padding = min(padding, n)
    loader = Loader(numbers(), Poisson(60, 10, seed=0), micro_batch_size=size)
    chunks = loader.chunks(Draw(np.arange(n), padding))
    flags = [place >= len(indices) - padded for indices, padded in chunks for place in range(len(indices))]
    assert flags == [place >= n - padding for place in range(n)]
    assert all(0 < len(indices) <= size for indices, _ in chunks)
    assert [int(i) for indices, _ in chunks for i in indices] == list(range(n))


@pytest.mark.subprocess
@pytest.mark.parametrize("sampler", SAMPLINGS)
def test_workers_load_the_same_data(sampler):
    here, there = (Loader(numbers(), sampler, micro_batch_size=4, num_workers=k) for k in (0, 2))
    assert drawn(there, 2, 9) == drawn(here, 2, 9) == expected(sampler, 2, 9, 4)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_leaving_a_loop_midway_does_not_shift_later_batches(num_workers):
    sampler = Poisson(60, 10, seed=0)
    loader = Loader(numbers(), sampler, micro_batch_size=3, num_workers=num_workers)
    for batch in loader.batches(0, 8):
        if batch.step == 2:
            next(iter(batch))  # the first of several micro-batches
            break
    assert drawn(loader, 2, 5) == expected(sampler, 2, 5, 3)
    assert drawn(loader, 5, 8) == expected(sampler, 5, 8, 3)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_unread_micro_batches_do_not_reach_the_next_batch(num_workers):
    sampler = Poisson(60, 10, seed=0)
    loader = Loader(numbers(), sampler, micro_batch_size=3, num_workers=num_workers)
    wanted = expected(sampler, 0, 6, 3)
    for batch in loader.batches(0, 6):
        if batch.step % 3 == 0:
            continue  # skip the batch
        if batch.step % 3 == 1:
            data, padding = next(iter(batch))
            assert (data[0].tolist(), padding) == wanted[batch.step][0]
            continue
        assert [(data[0].tolist(), padding) for data, padding in batch] == wanted[batch.step]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_can_be_read_twice(num_workers):
    loader = Loader(numbers(), Poisson(60, 10, seed=0), micro_batch_size=3, num_workers=num_workers)
    wanted = expected(loader.sampler, 0, 3, 3)
    for batch in loader.batches(0, 3):
        next(iter(batch))
        for _ in range(2):
            assert [(data[0].tolist(), padding) for data, padding in batch] == wanted[batch.step]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_empty_draws_are_batches_without_micro_batches(num_workers):
    sampler = Poisson(60, 1, seed=0)
    empty = [step for step in range(12) if not len(sampler.indices(step).indices)]
    assert 0 < len(empty) < 12
    batches = drawn(Loader(numbers(), sampler, num_workers=num_workers), 0, 12)
    assert [step for step in range(12) if batches[step] == []] == empty


@pytest.mark.parametrize("num_workers", [0, 2])
def test_nested_dicts_and_lists_keep_their_structure(num_workers):
    sampler = Poisson(60, 10, seed=0)
    for batch in Loader(Squares(), sampler, num_workers=num_workers).batches(0, 2):
        ((data, padding),) = read(batch)
        indices = sampler.indices(batch.step).indices.tolist()
        assert padding == 0
        assert set(data) == {"number", "nested", "half"}
        assert data["number"].tolist() == indices
        assert data["nested"][0].tolist() == [[i**2, i**2] for i in indices]
        assert data["half"].tolist() == [i / 2 for i in indices]


def test_a_list_is_a_data_set():
    dataset = [(torch.tensor([float(i)]), i) for i in range(60)]
    assert dataset_length(dataset) == 60
    sampler = Poisson(60, 10, seed=0)
    ((data, _),) = read(next(Loader(dataset, sampler).batches(0, 1)))
    assert data[0][:, 0].tolist() == data[1].tolist() == sampler.indices(0).indices.tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_tensor_dataset_with_its_own_getitem_is_read_one_example_at_a_time(num_workers):
    sampler = Poisson(60, 10, seed=0)
    loader = Loader(Shifted(torch.arange(60)), sampler, num_workers=num_workers)
    ((data, _),) = read(next(loader.batches(0, 1)))
    assert data.tolist() == (sampler.indices(0).indices + 100).tolist()


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_collate_fn_joins_the_examples(num_workers):
    def collate(examples):
        return Pair(torch.stack([x for x, _ in examples]) + 1000, torch.stack([y for _, y in examples]))

    sampler = Poisson(60, 10, seed=0)
    loader = Loader(numbers(), sampler, collate_fn=collate, num_workers=num_workers)
    ((data, _),) = read(next(loader.batches(0, 1)))
    assert isinstance(data, Pair)
    assert data.x.tolist() == (sampler.indices(0).indices + 1000).tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "collate",
    [
        lambda examples: torch.zeros(3, len(examples)),
        lambda examples: (torch.zeros(len(examples)), torch.zeros(3, len(examples))),
        lambda examples: {"x": torch.zeros(len(examples)), "total": torch.tensor(1.0)},
        lambda examples: torch.zeros(len(examples) - 1),
        lambda examples: [],
    ],
    ids=["example-axis-second", "one-of-two", "no-axis", "one-example-lost", "no-tensor"],
)
def test_batches_that_are_not_batch_first_are_refused(collate, num_workers):
    loader = Loader(numbers(), Shuffled(60, 20, seed=0), collate_fn=collate, num_workers=num_workers)
    (batch,) = loader.batches(0, 1)
    with pytest.raises(ValueError, match=r"batch-first|at least one tensor"):
        read(batch)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(5))


class NoLength:
    def __getitem__(self, index):
        return index


@pytest.mark.parametrize(
    ("dataset", "match"),
    [
        (Stream(), "IterableDataset"),
        (DataLoader(numbers()), "DataLoader"),
        (NoLength(), "__len__ and __getitem__, got NoLength"),
        ({1, 2}, "__len__ and __getitem__, got set"),
        (iter([1]), "__len__ and __getitem__"),
        (5, "__len__ and __getitem__, got int"),
        (None, "__len__ and __getitem__, got NoneType"),
    ],
    ids=["stream", "loader", "no-length", "set", "iterator", "number", "none"],
)
def test_a_data_set_that_cannot_be_indexed_is_refused(dataset, match):
    with pytest.raises(TypeError, match=match):
        dataset_length(dataset)
    model = torch.nn.Linear(1, 1)
    with pytest.raises(TypeError, match=match):
        adamas.make_private(
            model,
            rules.SGD(model.parameters(), lr=0.1),
            dataset,
            lambda model, batch: model(batch)[:, 0],
            batch_size=2,
            steps=1,
            noise_multiplier=1.0,
            delta=1e-5,
        )


def test_an_empty_data_set_is_refused():
    with pytest.raises(ValueError, match="at least one example"):
        dataset_length([])


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"micro_batch_size": 0}, ValueError, "micro_batch_size=0"),
        ({"micro_batch_size": 2.0}, TypeError, r"micro_batch_size=2\.0"),
        ({"num_workers": -1}, ValueError, "num_workers=-1"),
        ({"num_workers": 1.5}, TypeError, r"num_workers=1\.5"),
    ],
)
def test_bad_loader_arguments_are_named(arguments, error, match):
    with pytest.raises(error, match=match):
        Loader(numbers(), Poisson(60, 10, seed=0), **arguments)


def test_a_batch_shows_its_step_and_not_its_size():
    (batch,) = Loader(numbers(), Poisson(60, 10, seed=0)).batches(4, 5)
    assert isinstance(batch, Batch)
    assert repr(batch) == "Batch(step=4)"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loading_leaves_the_global_generator_alone(num_workers):
    torch.manual_seed(0)
    drawn(Loader(numbers(), Poisson(60, 10, seed=0), num_workers=num_workers), 0, 2)
    assert torch.rand(()).item() == torch.rand((), generator=torch.Generator().manual_seed(0)).item()
