"""Samplers draw each batch with the stated probabilities, as a function of seed and step.

The statistical tests fix the seed. A correct sampler fails one with probability ALPHA over the choice of the
seed, and each test also shows a wrong sampler that it rejects.
"""

import numpy as np
import pytest
import torch
from scipy import stats

from adamas.sampling import SAMPLERS, Poisson, Shuffled, TruncatedPoisson, joint_noise_multiplier
from tests.support.p_values import ALPHA, two_sided


def memberships(sampler, steps):
    rows = np.zeros((steps, sampler.dataset_size))
    for step in range(steps):
        draw = sampler.indices(step)
        rows[step, draw.indices[: len(draw.indices) - draw.padding]] = 1
    return rows


def rate_p_value(rows, rate):
    """Tests whether the share of ones is the rate."""
    return stats.binomtest(int(rows.sum()), rows.size, rate).pvalue


def equal_chances_p_value(rows):
    """Tests whether all examples are equally likely, given the sizes of the batches."""
    n = rows.shape[1]
    shares = rows.mean(1)
    counts = rows.sum(0)
    statistic = (n - 1) / n * ((counts - counts.mean()) ** 2).sum() / (shares * (1 - shares)).sum()
    return two_sided(stats.chi2(n - 1).cdf(statistic))


def batch_sizes_p_value(rows, rate):
    """Tests whether the sizes of the batches vary like those of independent coin flips."""
    steps, n = rows.shape
    statistic = ((rows.sum(1) - n * rate) ** 2).sum() / (n * rate * (1 - rate))
    return two_sided(stats.chi2(steps).cdf(statistic))


def pairs_p_value(rows, rate):
    """Tests whether the examples of a batch are independent of each other."""
    steps, n = rows.shape
    standard = (rows - rate) / np.sqrt(rate * (1 - rate))
    products = standard.T @ standard / np.sqrt(steps)
    statistic = (products[np.triu_indices(n, 1)] ** 2).sum()
    return two_sided(stats.chi2(n * (n - 1) / 2).cdf(statistic))


def consecutive_steps_p_value(rows, rate):
    """Tests whether a batch is independent of the previous one."""
    standard = (rows - rate) / np.sqrt(rate * (1 - rate))
    products = standard[1:] * standard[:-1]
    return two_sided(stats.norm.cdf(products.sum() / np.sqrt(products.size)))


@pytest.fixture(scope="module")
def poisson_rows():
    return memberships(Poisson(dataset_size=40, batch_size=4, seed=1), 5000)


def test_poisson_includes_examples_at_the_rate_at_false_alarm_rate_1e_4(poisson_rows):
    """False-alarm rate: ALPHA = 1e-4. Rejects a rate that is off by 5%."""
    assert rate_p_value(poisson_rows, 0.1) > ALPHA
    assert rate_p_value(poisson_rows, 0.105) < ALPHA
    assert rate_p_value(poisson_rows, 0.095) < ALPHA


def test_poisson_includes_every_example_equally_often_at_false_alarm_rate_1e_4(poisson_rows):
    """False-alarm rate: ALPHA = 1e-4. Rejects one example of 40 that joins 1.5 times as often."""
    assert equal_chances_p_value(poisson_rows) > ALPHA
    favoured = poisson_rows.copy()
    extra = np.random.default_rng(0).random(len(favoured)) < 0.055
    favoured[:, 7] = np.maximum(favoured[:, 7], extra)
    assert equal_chances_p_value(favoured) < ALPHA


def test_poisson_batch_sizes_vary_like_coin_flips_at_false_alarm_rate_1e_4(poisson_rows):
    """False-alarm rate: ALPHA = 1e-4. Rejects batches of a fixed size."""
    assert batch_sizes_p_value(poisson_rows, 0.1) > ALPHA
    fixed = memberships(Shuffled(dataset_size=40, batch_size=4, seed=1), 5000)
    assert batch_sizes_p_value(fixed, 0.1) < ALPHA


def test_poisson_examples_are_independent_at_false_alarm_rate_1e_4(poisson_rows):
    """False-alarm rate: about 1e-4. Rejects one pair of 780 that always joins together."""
    assert pairs_p_value(poisson_rows, 0.1) > ALPHA
    tied = poisson_rows.copy()
    tied[:, 3] = tied[:, 30]
    assert pairs_p_value(tied, 0.1) < ALPHA


def test_poisson_steps_are_independent_at_false_alarm_rate_1e_4(poisson_rows):
    """False-alarm rate: ALPHA = 1e-4. Rejects a sampler that repeats a batch once in 20 steps."""
    assert consecutive_steps_p_value(poisson_rows, 0.1) > ALPHA
    repeated = poisson_rows.copy()
    repeated[1::20] = repeated[::20]
    assert consecutive_steps_p_value(repeated, 0.1) < ALPHA


def test_empty_batches_have_their_frequency_at_false_alarm_rate_1e_4(poisson_rows):
    """False-alarm rate: ALPHA = 1e-4. Rejects a sampler that skips every other empty batch."""
    empty = int((poisson_rows.sum(1) == 0).sum())
    assert empty > 0
    assert stats.binomtest(empty, len(poisson_rows), 0.9**40).pvalue > ALPHA
    assert stats.binomtest(empty // 2, len(poisson_rows), 0.9**40).pvalue < ALPHA


def test_at_rate_one_a_batch_holds_all_examples():
    assert Poisson(30, 30, seed=0).indices(3).indices.tolist() == list(range(30))


def test_no_example_is_drawn_twice():
    for step in range(100):
        indices = Poisson(50, 25, seed=0).indices(step).indices
        assert len(set(indices.tolist())) == len(indices)


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
def test_batches_differ_between_steps_and_seeds(name):
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
def test_the_rate_and_the_steps_per_epoch_follow_from_the_sizes(name):
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


def test_the_joint_noise_multiplier_adds_inverse_squares():
    assert joint_noise_multiplier([3.0]) == 3.0
    assert joint_noise_multiplier([3.0, 4.0]) == pytest.approx(2.4)
    assert joint_noise_multiplier([3.0, 0.0]) == 0.0
    assert joint_noise_multiplier([2.0] * 4) == pytest.approx(1.0)


@pytest.fixture(scope="module")
def truncated_rows():
    return memberships(TruncatedPoisson(dataset_size=20, batch_size=10, max_batch_size=10, seed=2), 3000)


def test_truncated_batches_have_one_size_and_padding_at_the_end():
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
    """False-alarm rate: ALPHA = 1e-4. Rejects a sampler that keeps the first examples of a batch."""
    assert equal_chances_p_value(truncated_rows) > ALPHA
    first = memberships(Poisson(dataset_size=20, batch_size=10, seed=2), 3000)
    for row in first:
        row[np.flatnonzero(row)[10:]] = 0
    assert equal_chances_p_value(first) < ALPHA


def test_truncated_batches_are_full_as_often_as_they_should_at_false_alarm_rate_1e_4(truncated_rows):
    """False-alarm rate: ALPHA = 1e-4. Rejects a rate that is off by 5%."""
    full = int((truncated_rows.sum(1) == 10).sum())
    assert stats.binomtest(full, 3000, stats.binom(20, 0.5).sf(9)).pvalue > ALPHA
    assert stats.binomtest(full, 3000, stats.binom(20, 0.525).sf(9)).pvalue < ALPHA


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
