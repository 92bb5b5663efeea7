"""Partitions of examples among clients have the sizes, mixtures and moments asked for."""

import numpy as np
import pytest

from adamas.federated import dirichlet_partition

LABELS = np.random.default_rng(0).integers(0, 10, 5000)


def test_every_example_belongs_to_one_client():
    parts = dirichlet_partition(LABELS, clients=20, alpha=0.3, seed=1, least=20)
    assert sorted(np.concatenate(parts)) == list(range(5000))
    assert min(map(len, parts)) >= 20
    assert all((np.diff(part) > 0).all() for part in parts)


def test_a_partition_follows_from_the_seed():
    first, again, other = (dirichlet_partition(LABELS, clients=5, alpha=0.5, seed=s) for s in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def shares(alpha):
    """Returns the share of each client's most common class."""
    parts = dirichlet_partition(LABELS, clients=10, alpha=alpha, seed=3, least=1)
    return np.array([np.bincount(LABELS[part]).max() / len(part) for part in parts])


def test_a_small_alpha_gives_clients_few_classes_and_a_large_one_all():
    assert shares(0.05).mean() > 0.6
    assert shares(1000.0).max() < 0.16  # a tenth, plus rounding and uneven labels


def test_the_shares_of_a_class_have_the_moments_of_the_dirichlet_distribution():
    """With alpha = 1 and 4 clients, a share has mean 1/4 and variance 3/80. Each of 400 classes is a draw.

    The mean of 400 squares is normal with a standard deviation of at most 0.0023. A false alarm, beyond 5 of
    them, has probability 6e-7. With alpha = 2 the variance is 0.0208.
    """
    labels = np.repeat(np.arange(400), 200)
    for alpha, expected in ((1.0, 3 / 80), (2.0, 1 / 48)):
        parts = dirichlet_partition(labels, clients=4, alpha=alpha, seed=0)
        counts = np.bincount(labels[parts[0]], minlength=400) / 200
        assert abs(counts.mean() - 0.25) < 5 * np.sqrt(expected / 400)
        assert abs(((counts - 0.25) ** 2).mean() - expected) < 5 * 0.0023


def test_with_equal_sizes_clients_differ_by_at_most_one_example():
    parts = dirichlet_partition(LABELS, clients=30, alpha=0.1, seed=1, least=166, equal_sizes=True)
    assert sorted(np.concatenate(parts)) == list(range(5000))
    assert sorted(map(len, parts)) == [166] * 10 + [167] * 20
    assert all((np.diff(part) > 0).all() for part in parts)


def test_the_mixtures_of_clients_have_the_moments_of_the_dirichlet_distribution():
    """With alpha = 1 and 4 classes, the share of a class has mean 1/4 and variance 3/80. 400 clients count.

    There are 800 clients, so that no class runs out for the first 400. Each draws 100 examples from its
    mixture, which adds to the variance. Bounds and false-alarm rate are those of the test of shares. With
    alpha = 2 the variance is 0.0208.
    """
    labels = np.repeat(np.arange(4), 20_000)
    for alpha, expected in ((1.0, 3 / 80), (2.0, 1 / 48)):
        parts = dirichlet_partition(labels, clients=800, alpha=alpha, seed=0, equal_sizes=True)
        share = np.array([np.mean(labels[part] == 0) for part in parts[:400]])
        drawn = expected + (0.25 * 0.75 - expected) / 100
        assert abs(share.mean() - 0.25) < 5 * np.sqrt(drawn / 400)
        assert abs(((share - 0.25) ** 2).mean() - drawn) < 5 * 0.0023


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 0}, "clients=0"),
        ({"alpha": 0.0}, "alpha=0.0"),
        ({"least": 600}, "clients .* least = 6000 examples"),
        ({"least": 480, "alpha": 0.01}, "no draw of 1000 with least=480"),
    ],
)
def test_an_impossible_partition_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        dirichlet_partition(LABELS, **{"clients": 10, "alpha": 1.0, "seed": 0} | options)
