"""Bounds and class weights that are paid for: their sensitivity, their price and what they find."""

import math

import dp_accounting
import numpy as np
import pytest

pd = pytest.importorskip("pandas")

from dp_accounting.pld import PLDAccountant  # noqa: E402

from adamas import BudgetError, DataLedger, Ledger  # noqa: E402
from adamas.tabular import PrivateClassifier, PrivateRegressor  # noqa: E402
from adamas.tabular.statistics import EDGES, bounds_of, class_histogram, histogram, released  # noqa: E402
from tests.support.patients import CATEGORIES, FAST, patients  # noqa: E402

pytestmark = pytest.mark.slow  # importing pandas and scikit-learn takes seconds

PRIVATE = {"bounds": "private", "categories": CATEGORIES}


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-300, 3.0, -7.5, 1e308, math.inf, -math.inf, math.nan])
def test_a_value_counts_in_one_bin_at_most(value):
    values = np.array([1.0, 2.0, 30.0])
    moved = histogram(np.append(values, value)) - histogram(values)
    assert len(moved) == len(EDGES) - 1
    assert np.abs(moved).sum() == (0 if math.isnan(value) else 1)
    if math.isfinite(value) and EDGES[0] <= value < EDGES[-1]:
        (place,) = np.flatnonzero(moved)
        assert EDGES[place] <= value < EDGES[place + 1]


def test_a_label_counts_in_one_class_at_most():
    np.testing.assert_array_equal(class_histogram(np.array([0, 2, 2, -1]), 3), [1, 0, 2])


def test_bounds_hold_most_values_and_drop_bins_of_noise():
    random = np.random.default_rng(0)
    values = np.concatenate([random.uniform(20, 90, 1000), [1e9]])
    assert bounds_of(histogram(values), 0.1) == (16, 128)
    noisy = histogram(values) + np.rint(random.normal(0, 8, len(EDGES) - 1))
    assert bounds_of(noisy, 8.0) == (16, 128)
    signed = histogram(random.normal(0, 1, 1000))
    low, high = bounds_of(signed, 0.1)
    assert low in (-4, -2)
    assert high in (2, 4)
    weak = np.zeros(len(EDGES) - 1)
    weak[70] = 2
    assert bounds_of(weak, 5.0) == (EDGES[70], EDGES[71])  # all may be noise: the fullest bin


def test_noise_has_the_deviation_of_all_histograms_together():
    ledger = Ledger()
    zeros = [np.zeros(2000, dtype=int) for _ in range(4)]
    noisy, deviation = released(zeros, dp_accounting.GaussianDpEvent(10.0), ledger, seed=3)
    assert deviation == 20.0  # sqrt(4) times 10: a row is in each of four histograms
    joined = np.concatenate(noisy)
    assert [len(one) for one in noisy] == [2000] * 4
    # 8,000 values: the sample deviation is within 4% of 20 but for probability 6e-7.
    assert abs(joined.std() / 20 - 1) < 0.04
    assert ledger.entries == [(dp_accounting.GaussianDpEvent(10.0), 1)]


def test_the_budget_pays_for_statistics_and_training():
    table, labels, _ = patients(400)
    options = FAST | {"accountant": "pld", "epochs": 3, "batch_size": 100}
    model = PrivateClassifier(
        2.0, 1e-5, classes=[0, 1], **PRIVATE, class_weight="balanced", statistics_share=0.2, **options
    ).fit(table, labels)
    (statistics, once), (training, steps) = model.ledger_.entries
    assert once == 1
    assert steps == model.n_steps_ == 12
    gaussian = dp_accounting.GaussianDpEvent
    accountant = PLDAccountant()
    accountant.compose(gaussian(statistics.noise_multiplier))
    assert 0.38 < accountant.get_epsilon(1e-5) <= 0.4
    step = dp_accounting.PoissonSampledDpEvent(0.25, gaussian(model.noise_multiplier_))
    assert training == step
    accountant.compose(step, 12)
    assert 1.9 < accountant.get_epsilon(1e-5) <= 2.0
    assert model.epsilon_ == pytest.approx(accountant.get_epsilon(1e-5), abs=0.01)
    assert "noisy histograms of 3 columns" in model.privacy_statement_
    assert 0.38 < Ledger.of(model.ledger_.entries[:1], model.ledger_.relation).epsilon(1e-5) <= 0.4


def test_private_bounds_are_about_right():
    table, _, target = patients(3000)
    model = PrivateRegressor(3.0, target_bounds="private", **PRIVATE, **FAST).fit(table, target)
    age, pressure, _ = model.schema_.columns
    assert (age.low, age.high) == (16, 128)
    assert (pressure.low, pressure.high) == (64, 256)
    low, high = model.target_bounds_
    assert low <= 1
    assert high == 16
    assert model.score(table, target) > 0.5


def test_balanced_weights_are_those_of_noisy_counts():
    table, _, _ = patients(1000)
    labels = (table["age"] > 84).astype(int).to_numpy()  # one in twelve
    options = FAST | {"classes": [0, 1], "bounds": (0, 250), "categories": CATEGORIES, "epsilon": 10.0}
    usual = PrivateClassifier(**options).fit(table, labels)
    balanced = PrivateClassifier(**options, class_weight="balanced").fit(table, labels)
    assert usual.predict(table).mean() < 0.2
    assert 0.2 < balanced.predict(table).mean() < 0.8


def test_statistics_and_training_are_reserved_before_either_is_released(tmp_path):
    table, labels, _ = patients(200)
    options = FAST | {"classes": [0, 1], "epochs": 2, "delta": 1e-5}
    ledger = DataLedger.create(tmp_path / "patients.ledger", epsilon=2.0, delta=1e-5, accountant="rdp")
    model = PrivateClassifier(2.0, **PRIVATE, **options, data_ledger=ledger).fit(table, labels)
    assert ledger.epsilon() == pytest.approx(model.epsilon_)
    assert 1.9 < model.epsilon_ <= 2.0
    (account,) = ledger.spendings()
    assert account.finished
    assert account.entries == model.ledger_.entries
    again = PrivateClassifier(1.5, **PRIVATE, **options, data_ledger=ledger.path)
    with pytest.raises(BudgetError):
        again.fit(table, labels)
    assert len(ledger.spendings()) == 1


def test_noise_of_statistics_is_not_that_of_the_training():
    zeros = [np.zeros(40, dtype=int)]
    mine, _ = released(zeros, dp_accounting.GaussianDpEvent(1000.0), Ledger(), seed=0)
    from adamas.queries import noisy_counts

    theirs = noisy_counts(zeros[0], noise_multiplier=1000.0, seed=0)
    assert abs(np.corrcoef(mine[0], theirs)[0, 1]) < 0.9


def test_a_share_that_the_accountant_cannot_resolve_is_named():
    message = r"statistics_share=0.1 of epsilon=1.0: .* got epsilon=0.1 .* Use accountant='pld'"
    with pytest.raises(ValueError, match=message):
        PrivateClassifier(1.0, bounds="private", classes=[0, 1], **FAST).fit([[0.5]] * 60, [0, 1] * 30)
