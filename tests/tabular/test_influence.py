"""Attacks on `fit`: how far one row moves it, whatever is in the row, and what a row can change besides."""

import math

import numpy as np
import pytest
import torch

pd = pytest.importorskip("pandas")

from adamas.tabular import PrivateClassifier, PrivateRegressor  # noqa: E402
from adamas.tabular.encoding import encode  # noqa: E402
from tests.support.patients import FAST, GIVEN, patients  # noqa: E402

pytestmark = pytest.mark.slow  # importing pandas and scikit-learn takes seconds

N = 60
ONE_STEP = FAST | {"rule": "sgd", "learning_rate": 1.0, "epochs": 1, "batch_size": N, "delta": 1e-5}
TABLE, LABELS, TARGET = patients(N)
ROW = 7

ROWS = {
    "as it is": {},
    "NaN": {"age": math.nan, "pressure": math.nan, "ward": math.nan},
    "infinite": {"age": math.inf, "pressure": -math.inf},
    "huge": {"age": 1e308, "pressure": -1e308},
    "unknown category": {"ward": "a new ward"},
    "no numbers": {"age": "?", "pressure": [1, 2], "ward": {"a": 1}},
}


def changed(values):
    """Returns the table with other values in one row."""
    table = TABLE.astype(object)
    for column, value in values.items():
        table.at[ROW, column] = value
    return table


def without_row(weight):
    """Returns weights of the rows, of which one has this weight."""
    weights = np.ones(N)
    weights[ROW] = weight
    return weights


def weights_of(estimator):
    return torch.cat([p.detach().reshape(-1) for p in estimator.model_.parameters()]).numpy()


def influence(make, target, table, weight=1.0):
    """Measures how far the row moves the sum of one step: at most 1 is promised."""
    present = make().fit(table, target, sample_weight=without_row(weight))
    absent = make().fit(TABLE, target, sample_weight=without_row(math.nan))
    for name in ("schema_", "n_steps_", "epsilon_", "delta_", "noise_multiplier_", "privacy_statement_"):
        assert getattr(present, name) == getattr(absent, name), name
    return N * (weights_of(present) - weights_of(absent))


def classifier(**options):
    return PrivateClassifier(classes=[0, 1], **GIVEN, **(ONE_STEP | options))


def regressor(**options):
    return PrivateRegressor(target_bounds=(0, 10), **GIVEN, **(ONE_STEP | options))


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("hidden", [(), (4,)])
def test_a_row_moves_the_sum_by_at_most_1(kind, hidden):
    table = changed(ROWS[kind])
    for make, target in ((classifier, LABELS), (regressor, TARGET)):
        moved = influence(lambda make=make: make(hidden_layer_sizes=hidden), target, table)
        assert 0 < np.linalg.norm(moved) <= 1 + 1e-5


@pytest.mark.parametrize("weight", [1e30, 1e38, 1e300, 1e-3])
def test_a_weight_moves_it_by_no_more(weight):
    moved = influence(lambda: classifier(class_weight={0: 1e6, 1: 1e6}), LABELS, TABLE, weight)
    assert np.linalg.norm(moved) <= 1 + 1e-5
    assert np.linalg.norm(moved) > min(weight, 0.999) / 2


def test_the_move_is_the_clipped_gradient_of_autograd():
    weight = 0.4
    moved = influence(lambda: classifier(clip_norm=0.3), LABELS, TABLE, weight)
    schema = classifier().fit(TABLE, LABELS).schema_
    x = torch.from_numpy(encode(TABLE[ROW : ROW + 1], schema)).double()
    model = torch.nn.Linear(x.shape[1], 1).double()
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    y = torch.tensor([[float(LABELS[ROW])]]).double()
    loss = weight * torch.nn.functional.binary_cross_entropy_with_logits(model(x), y)
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
    clipped = gradient * min(1.0, 0.3 / float(gradient.norm()))
    np.testing.assert_allclose(moved, -clipped.numpy(), atol=1e-5)


@pytest.mark.parametrize("label", [2, -1, math.nan, "0", None, 1e400])
def test_a_row_of_no_known_class_takes_no_part(label):
    labels = LABELS.astype(object)
    labels[ROW] = label
    assert not influence(classifier, labels, TABLE).any()
    assert list(classifier().fit(TABLE, labels).classes_) == [0, 1]
    assert not influence(classifier, list(labels), TABLE).any()  # as a list, too


@pytest.mark.parametrize("target", [math.nan, "?", None, [3]])
def test_a_row_without_a_target_takes_no_part(target):
    targets = TARGET.astype(object)
    targets[ROW] = target
    assert not influence(regressor, targets, TABLE).any()


@pytest.mark.parametrize("target", [1e308, -math.inf])
def test_a_target_out_of_bounds_is_clipped(target):
    moves = []
    for value in (target, math.copysign(1e9, target), 10.0 if target > 0 else 0.0):
        targets = TARGET.copy()
        targets[ROW] = value
        moves.append(influence(regressor, targets, TABLE))
    assert 0 < np.linalg.norm(moves[0]) <= 1 + 1e-5
    np.testing.assert_array_equal(moves[0], moves[1])
    np.testing.assert_array_equal(moves[0], moves[2])


@pytest.mark.parametrize("weight", [math.nan, math.inf, -1.0])
def test_a_row_whose_weight_is_none_takes_no_part(weight):
    assert not influence(classifier, LABELS, TABLE, weight).any()


def test_one_text_in_a_list_of_numbers_changes_its_row_only():
    x = TABLE[["age", "pressure"]].to_numpy().tolist()
    spoiled = [list(row) for row in x]
    spoiled[ROW] = ["?", "?"]
    options = ONE_STEP | {"classes": [0, 1], "bounds": (0, 250)}
    present, absent = (
        PrivateClassifier(**options).fit(rows, LABELS, sample_weight=without_row(w))
        for rows, w in ((spoiled, 1.0), (x, math.nan))
    )
    assert np.linalg.norm(N * (weights_of(present) - weights_of(absent))) <= 1 + 1e-5


def test_the_count_of_unusable_rows_is_for_the_owner():
    labels = LABELS.astype(object)
    labels[[3, 9]] = "?"
    counted = classifier().count_unusable(changed(ROWS["NaN"]), labels, without_row(-1.0))
    assert (counted.count, counted.total) == (3, N)
    assert "not private" in str(counted)
