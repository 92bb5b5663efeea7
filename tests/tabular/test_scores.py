"""Scores are those of scikit-learn."""

import math

import numpy as np
import pytest

pytest.importorskip("pandas")

from sklearn import metrics

from adamas.tabular import class_scores, number_scores
from adamas.tabular.scores import plain

pytestmark = pytest.mark.slow  # importing pandas and scikit-learn takes seconds


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("decimals", [1, 12])  # with many ties, and without
def test_scores_of_classes(classes, decimals):
    random = np.random.default_rng(classes)
    labels = random.integers(classes, size=200)
    logits = random.normal(size=(200, classes)) + 0.7 * np.eye(classes)[labels]
    p = np.exp(logits).round(decimals) + 0.01
    p /= p.sum(axis=1, keepdims=True)
    found = class_scores(p, labels)
    auc = metrics.roc_auc_score(labels, p[:, 1] if classes == 2 else p, multi_class="ovr")
    half = classes == 2
    prior = np.tile(np.bincount(labels) / 200, (200, 1))
    assert found["auc"] == pytest.approx(auc, abs=1e-12)
    assert found["accuracy"] == metrics.accuracy_score(labels, p.argmax(1))
    assert found["majority_accuracy"] == np.bincount(labels).max() / 200
    truth = np.eye(classes)[labels]
    for name, probabilities in (("brier", p), ("prior_brier", prior)):
        expected = np.square(probabilities - truth).sum(1).mean() / (2 if half else 1)
        assert found[name] == pytest.approx(expected, abs=1e-12)
    if half:
        assert found["brier"] == pytest.approx(metrics.brier_score_loss(labels, p[:, 1]), abs=1e-12)


def test_scores_of_numbers():
    random = np.random.default_rng(0)
    truth = random.normal(size=100)
    predictions = truth + random.normal(size=100) / 2
    found = number_scores(predictions, truth)
    assert found["r2"] == pytest.approx(metrics.r2_score(truth, predictions), abs=1e-12)
    assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(truth, predictions), abs=1e-12)
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(truth, predictions), abs=1e-12)
    mean = np.full(100, truth.mean())
    assert found["mean_rmse"] == pytest.approx(metrics.root_mean_squared_error(truth, mean), abs=1e-12)


def test_an_absent_class_has_no_auc():
    found = class_scores(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))
    assert math.isnan(found["auc"])
    assert plain(found)["auc"] is None
    assert found["majority_accuracy"] == 1
