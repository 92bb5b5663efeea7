"""Who takes part in a step, and how their data arrive: `adamas.sampling` and `adamas.loading`.

The statistical tests compute p-values of fixed seeds. A right sampler fails one with probability ALPHA
over the choice of its seed, and each test also shows a wrong sampler that it rejects.
"""

import pickle
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import adamas
from adamas import rules
from adamas._streams import Seed
from adamas.loading import Batch, Loader, dataset_length
from adamas.sampling import SAMPLERS, Draw, Poisson, Shuffled, TruncatedPoisson, joint_noise_multiplier

ALPHA = 1e-4

pytestmark = [
    # On machines with fewer cores than workers, and on Pythons that dislike forks.
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:This process .*is multi-threaded"),
]


# Statistics of a matrix of ones and zeros, steps x examples ---------------------------------------------


def memberships(sampler, steps):
    rows = np.zeros((steps, sampler.dataset_size))
    for step in range(steps):
        draw = sampler.indices(step)
        rows[step, draw.indices[: len(draw.indices) - draw.padding]] = 1
    return rows


def two_sided(p_below):
    return 2 * min(p_below, 1 - p_below)


def rate_p_value(rows, rate):
    """Is the share of ones the rate?"""
    return stats.binomtest(int(rows.sum()), rows.size, rate).pvalue


def equal_chances_p_value(rows):
    """Does every example have the same chance, given the sizes of the batches?"""
    n = rows.shape[1]
    shares = rows.mean(1)
    counts = rows.sum(0)
    statistic = (n - 1) / n * ((counts - counts.mean()) ** 2).sum() / (shares * (1 - shares)).sum()
    return two_sided(stats.chi2(n - 1).cdf(statistic))


def batch_sizes_p_value(rows, rate):
    """Do the sizes of the batches scatter as those of independent coin flips?"""
    steps, n = rows.shape
    statistic = ((rows.sum(1) - n * rate) ** 2).sum() / (n * rate * (1 - rate))
    return two_sided(stats.chi2(steps).cdf(statistic))


def pairs_p_value(rows, rate):
    """Do two examples of a batch know of each other?"""
    steps, n = rows.shape
    standard = (rows - rate) / np.sqrt(rate * (1 - rate))
    products = standard.T @ standard / np.sqrt(steps)
    statistic = (products[np.triu_indices(n, 1)] ** 2).sum()
    return two_sided(stats.chi2(n * (n - 1) / 2).cdf(statistic))


def consecutive_steps_p_value(rows, rate):
    """Does a batch know of the one before?"""
    standard = (rows - rate) / np.sqrt(rate * (1 - rate))
    products = standard[1:] * standard[:-1]
    return two_sided(stats.norm.cdf(products.sum() / np.sqrt(products.size)))


# Poisson ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def poisson_rows():
    return memberships(Poisson(dataset_size=40, batch_size=4, seed=1), 5000)


def test_poisson_inclusion_rate_at_false_alarm_rate_1e_4(poisson_rows):
    """False-alarm rate: ALPHA = 1e-4; a rate that is off by 5% is rejected."""
    assert rate_p_value(poisson_rows, 0.1) > ALPHA
    assert rate_p_value(poisson_rows, 0.105) < ALPHA
    assert rate_p_value(poisson_rows, 0.095) < ALPHA


def test_poisson_gives_every_example_the_same_chance_at_false_alarm_rate_1e_4(poisson_rows):
    """False-alarm rate: ALPHA = 1e-4; rejected if one example of 40 joins half as often again."""
    assert equal_chances_p_value(poisson_rows) > ALPHA
    favoured = poisson_rows.copy()
    extra = np.random.default_rng(0).random(len(favoured)) < 0.055
    favoured[:, 7] = np.maximum(favoured[:, 7], extra)
    assert equal_chances_p_value(favoured) < ALPHA


def test_poisson_batch_sizes_scatter_as_coin_flips_at_false_alarm_rate_1e_4(poisson_rows):
    """False-alarm rate: ALPHA = 1e-4; batches of a fixed size are rejected."""
    assert batch_sizes_p_value(poisson_rows, 0.1) > ALPHA
    fixed = memberships(Shuffled(dataset_size=40, batch_size=4, seed=1), 5000)
    assert batch_sizes_p_value(fixed, 0.1) < ALPHA


def test_poisson_examples_are_independent_at_false_alarm_rate_1e_4(poisson_rows):
    """False-alarm rate: about 1e-4; rejected if one pair of 780 always joins together."""
    assert pairs_p_value(poisson_rows, 0.1) > ALPHA
    tied = poisson_rows.copy()
    tied[:, 3] = tied[:, 30]
    assert pairs_p_value(tied, 0.1) < ALPHA


def test_poisson_steps_are_independent_at_false_alarm_rate_1e_4(poisson_rows):
    """False-alarm rate: ALPHA = 1e-4; rejected if one step of 20 repeats the batch before."""
    assert consecutive_steps_p_value(poisson_rows, 0.1) > ALPHA
    repeated = poisson_rows.copy()
    repeated[1::20] = repeated[::20]
    assert consecutive_steps_p_value(repeated, 0.1) < ALPHA


def test_empty_batches_occur_and_are_as_frequent_as_they_should_at_false_alarm_rate_1e_4(poisson_rows):
    """False-alarm rate: ALPHA = 1e-4; a sampler that skips every other empty batch is rejected."""
    empty = int((poisson_rows.sum(1) == 0).sum())
    assert empty > 0
    assert stats.binomtest(empty, len(poisson_rows), 0.9**40).pvalue > ALPHA
    assert stats.binomtest(empty // 2, len(poisson_rows), 0.9**40).pvalue < ALPHA


def test_a_batch_of_all_examples_holds_all():
    assert Poisson(30, 30, seed=0).indices(3).indices.tolist() == list(range(30))


def test_no_example_is_drawn_twice():
    for step in range(100):
        indices = Poisson(50, 25, seed=0).indices(step).indices
        assert len(set(indices.tolist())) == len(indices)


# All samplers -------------------------------------------------------------------------------------------


def make(name, seed=0):
    size = {"dataset_size": 50, "batch_size": 20, "seed": seed}
    return SAMPLERS[name](**size, **({"max_batch_size": 24} if name == "truncated-poisson" else {}))


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_batch_is_a_function_of_seed_and_step(name):
    sampler = make(name)
    forwards = [sampler.indices(step) for step in range(8)]
    other = make(name)
    for step in reversed(range(8)):
        again = other.indices(step)
        np.testing.assert_array_equal(again.indices, forwards[step].indices)
        assert again.padding == forwards[step].padding


@pytest.mark.parametrize("name", SAMPLERS)
def test_steps_and_seeds_differ(name):
    batches = {
        tuple(make(name, seed).indices(step).indices.tolist())
        for seed in (0, 1, 2**32, 2**32 + 1, 2**200, None)
        for step in range(8)
    }
    assert len(batches) == 48


@pytest.mark.parametrize("name", SAMPLERS)
def test_sampling_leaves_the_global_generators_alone(name):
    torch.manual_seed(0)
    np.random.seed(0)
    sampler = make(name)
    expected = [sampler.indices(step).indices.tolist() for step in range(3)]
    assert torch.rand(()).item() == torch.rand((), generator=torch.Generator().manual_seed(0)).item()
    assert np.random.random() == np.random.RandomState(0).random()
    torch.manual_seed(5)
    np.random.seed(5)
    assert [sampler.indices(step).indices.tolist() for step in range(3)] == expected


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_rate_and_the_length_of_an_epoch(name):
    sampler = make(name)
    assert sampler.rate == 0.4
    assert sampler.steps_per_epoch() == 3


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"batch_size": 51}, ValueError, r"batch_size=51 <= 50"),
        ({"batch_size": 0}, ValueError, "batch_size=0"),
        ({"batch_size": 2.5}, TypeError, r"batch_size=2\.5"),
        ({"batch_size": True}, TypeError, "batch_size=True"),
        ({"dataset_size": 0}, ValueError, "dataset_size=0"),
        ({"dataset_size": -5}, ValueError, "dataset_size=-5"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"seed": 2**256}, ValueError, "seed="),
        ({"seed": 1.0}, TypeError, r"seed=1\.0"),
        ({"seed": True}, TypeError, "seed=True"),
    ],
)
def test_bad_arguments_are_named(name, arguments, error, match):
    good = {"dataset_size": 50, "batch_size": 20}
    if name == "truncated-poisson":
        good["max_batch_size"] = 60
    with pytest.raises(error, match=match):
        SAMPLERS[name](**good | arguments)


def test_truncated_poisson_refuses_a_maximum_below_the_expected_size():
    with pytest.raises(ValueError, match="max_batch_size=19 >= batch_size=20"):
        TruncatedPoisson(50, 20, 19)
    with pytest.raises(TypeError, match=r"max_batch_size=30\.0"):
        TruncatedPoisson(50, 20, 30.0)


def test_joint_noise_multiplier():
    assert joint_noise_multiplier([3.0]) == 3.0
    assert joint_noise_multiplier([3.0, 4.0]) == pytest.approx(2.4)
    assert joint_noise_multiplier([3.0, 0.0]) == 0.0
    assert joint_noise_multiplier([2.0] * 4) == pytest.approx(1.0)


# Secret seeds -------------------------------------------------------------------------------------------


def test_a_secret_seed_is_shown_nowhere():
    seed = Seed()
    sampler = Poisson(100, 10, seed)
    number = int.from_bytes(seed._secret, "big")
    shown = repr(seed) + str(seed) + repr(sampler) + repr(vars(sampler)) + repr(seed.given)
    assert "secret" in repr(seed)
    for form in (str(number), f"{number:x}", repr(seed._secret), seed._secret.hex()):
        assert form not in shown


def test_a_given_seed_is_named_and_secret_ones_differ():
    assert repr(Seed(7)) == "Seed(7)"
    assert len({Seed()._secret for _ in range(20)}) == 20


def test_a_secret_seed_is_not_in_a_checkpoint():
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    model = torch.nn.Linear(2, 1)
    run = adamas.make_private(
        model,
        rules.SGD(model.parameters(), lr=0.1),
        TensorDataset(x),
        lambda model, batch: model(batch[0])[:, 0],
        batch_size=5,
        steps=2,
        noise_multiplier=1.0,
        delta=1e-3,
        progress=False,
    )
    for _ in run:
        pass
    secret = run.noise.seed._secret
    number = int.from_bytes(secret, "big")
    saved = pickle.dumps(run.state_dict())
    for form in (secret, secret[::-1], str(number).encode(), secret.hex().encode()):
        assert form not in saved
        assert form not in (repr(run) + run.privacy_statement()).encode()


# Truncated Poisson --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def truncated_rows():
    return memberships(TruncatedPoisson(dataset_size=20, batch_size=10, max_batch_size=10, seed=2), 3000)


def test_truncated_batches_have_one_size_and_their_padding_is_last():
    sampler = TruncatedPoisson(dataset_size=20, batch_size=10, max_batch_size=12, seed=0)
    untruncated = Poisson(dataset_size=20, batch_size=10, seed=0)
    cut = padded = 0
    for step in range(200):
        draw, whole = sampler.indices(step), untruncated.indices(step).indices
        assert len(draw.indices) == 12
        assert ((draw.indices >= 0) & (draw.indices < 20)).all()
        real = draw.indices[: 12 - draw.padding].tolist()
        assert draw.padding == max(0, 12 - len(whole))
        assert len(set(real)) == len(real)
        assert set(real) <= set(whole.tolist())
        cut += len(whole) > 12
        padded += draw.padding > 0
    assert cut > 10
    assert padded > 10


def test_truncation_is_uniform_at_false_alarm_rate_1e_4(truncated_rows):
    """False-alarm rate: ALPHA = 1e-4; keeping the first examples of a batch is rejected."""
    assert equal_chances_p_value(truncated_rows) > ALPHA
    first = memberships(Poisson(dataset_size=20, batch_size=10, seed=2), 3000)
    for row in first:
        row[np.flatnonzero(row)[10:]] = 0
    assert equal_chances_p_value(first) < ALPHA


def test_truncated_batch_sizes_at_false_alarm_rate_1e_4(truncated_rows):
    """False-alarm rate: ALPHA = 1e-4; a rate that is off by 5% is rejected."""
    full = int((truncated_rows.sum(1) == 10).sum())
    assert stats.binomtest(full, 3000, stats.binom(20, 0.5).sf(9)).pvalue > ALPHA
    assert stats.binomtest(full, 3000, stats.binom(20, 0.525).sf(9)).pvalue < ALPHA


# Shuffled -----------------------------------------------------------------------------------------------


def test_each_shuffled_epoch_is_a_permutation_with_a_smaller_last_batch():
    sampler = Shuffled(dataset_size=50, batch_size=20, seed=0)
    orders = []
    for epoch in range(3):
        batches = [sampler.indices(3 * epoch + place).indices for place in range(3)]
        assert [len(batch) for batch in batches] == [20, 20, 10]
        orders.append(np.concatenate(batches).tolist())
        assert sorted(orders[-1]) == list(range(50))
    assert orders[0] != orders[1] != orders[2]
    assert list(range(50)) not in orders


def test_the_accounting_unit_is_the_step_or_the_epoch():
    assert [make("poisson").unit(step) for step in range(4)] == [0, 1, 2, 3]
    assert [make("truncated-poisson").unit(step) for step in range(4)] == [0, 1, 2, 3]
    assert [make("shuffled").unit(step) for step in range(7)] == [0, 0, 0, 1, 1, 1, 2]


# Loading ------------------------------------------------------------------------------------------------


def numbers(n=60):
    return TensorDataset(torch.arange(n), torch.arange(n) * 10)


class Squares(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        assert isinstance(index, int)
        return {"number": torch.tensor(index), "nested": [torch.full((2,), index**2)], "half": index / 2}


class Shifted(TensorDataset):
    """A subclass with a `__getitem__` of its own, written for one index."""

    def __getitem__(self, index):
        assert isinstance(index, int)
        return self.tensors[0][index] + 100


def read(batch):
    return [(data, padding) for data, padding in batch]


def drawn(loader, first, end):
    """The first tensor of each micro-batch of each batch, as lists."""
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
def test_leaving_a_loop_in_the_middle_does_not_shift_data(num_workers):
    sampler = Poisson(60, 10, seed=0)
    loader = Loader(numbers(), sampler, micro_batch_size=3, num_workers=num_workers)
    for batch in loader.batches(0, 8):
        if batch.step == 2:
            next(iter(batch))  # one micro-batch of several
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
            continue  # nothing is read
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
def test_nests_of_dicts_and_lists_arrive_as_they_are(num_workers):
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
def test_a_tensor_dataset_with_its_own_getitem_is_asked_for_one_example_at_a_time(num_workers):
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
def test_what_cannot_be_sampled_is_refused(dataset, match):
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
