"""The estimators learn, work with scikit-learn's tools, and say what they spent."""

import pickle

import dp_accounting
import numpy as np
import pytest
import torch

pd = pytest.importorskip("pandas")

from sklearn import datasets  # noqa: E402
from sklearn.base import clone  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.metrics import roc_auc_score  # noqa: E402
from sklearn.model_selection import GridSearchCV, cross_val_score  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import FunctionTransformer  # noqa: E402

from adamas import DataLedger  # noqa: E402
from adamas.tabular import PrivateClassifier, PrivateRegressor  # noqa: E402
from tests.support.patients import BOUNDS, CATEGORIES, FAST, GIVEN, patients  # noqa: E402

pytestmark = pytest.mark.slow  # importing pandas and scikit-learn takes seconds

TABLE, LABELS, TARGET = patients(1000)
TEST, TEST_LABELS, TEST_TARGET = patients(500, seed=1)
CLASSES = {"classes": [0, 1]}
SHORT = FAST | {"epochs": 2}


def test_a_classifier_learns_within_its_budget():
    model = PrivateClassifier(3.0, **GIVEN, **CLASSES, **FAST).fit(TABLE, LABELS)
    scores = model.evaluate(TEST, TEST_LABELS)
    assert scores["accuracy"] > scores["majority_accuracy"] + 0.2
    assert scores["auc"] > 0.9
    assert scores["brier"] < scores["prior_brier"] - 0.08
    assert scores["rows"] == 500
    assert scores["accuracy"] == model.score(TEST, TEST_LABELS)
    assert scores["auc"] == pytest.approx(roc_auc_score(TEST_LABELS, model.predict_proba(TEST)[:, 1]))
    accountant = dp_accounting.rdp.RdpAccountant()
    rate = dp_accounting.GaussianDpEvent(model.noise_multiplier_)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.1, rate), model.n_steps_)
    assert 2.9 < accountant.get_epsilon(model.delta_) <= 3.0
    assert model.epsilon_ == pytest.approx(accountant.get_epsilon(model.delta_), rel=1e-3)
    assert model.delta_ == 1e-5
    assert "differentially private under adding or removing one record" in model.privacy_statement_
    assert list(model.feature_names_in_) == ["age", "pressure", "ward"]


def test_with_a_large_budget_it_is_logistic_regression():
    x = np.random.default_rng(0).uniform(-1, 1, size=(2000, 3))
    y = (x @ [2.0, -1.0, 0.0] + np.random.default_rng(1).logistic(size=2000) * 0.5 > 0).astype(int)
    options = FAST | {"epsilon": 300.0, "bounds": (-1, 1), "learning_rate": 0.3, "epochs": 40}
    private = PrivateClassifier(**CLASSES, **options).fit(x, y)
    exact = LogisticRegression(C=1e6).fit(x, y)
    difference = private.predict_proba(x)[:, 1] - exact.predict_proba(x)[:, 1]
    assert np.abs(difference).max() < 0.1
    assert np.abs(difference).mean() < 0.03


def test_a_regressor_learns_and_predicts_within_its_bounds():
    options = GIVEN | FAST | {"target_bounds": (0, 10)}
    model = PrivateRegressor(3.0, **options).fit(TABLE, TARGET)
    scores = model.evaluate(TEST, TEST_TARGET)
    assert scores["rmse"] < 0.6 * scores["mean_rmse"]
    assert scores["r2"] == pytest.approx(model.score(TEST, TEST_TARGET))
    extreme = TEST.assign(age=1e9)
    assert model.predict(extreme).max() <= 10


def test_several_classes_and_hidden_layers():
    x, y = datasets.load_digits(return_X_y=True)
    names = np.array([f"digit {label}" for label in y])
    model = PrivateClassifier(
        8.0, bounds=(0, 16), classes=sorted(set(names)), hidden_layer_sizes=(32,), **FAST
    ).fit(x, names)
    assert next(p.shape for p in model.model_.parameters()) == (32, 128)
    p = model.predict_proba(x)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    assert (model.classes_[p.argmax(1)] == model.predict(x)).all()
    assert model.score(x, names) > 0.75
    assert model.evaluate(x, names)["auc"] > 0.95


def test_labels_may_be_declared_public():
    labels = np.where(LABELS == 1, "yes", "no")
    model = PrivateClassifier(**GIVEN, **SHORT, classes="public").fit(TABLE, labels)
    assert model.classes_.tolist() == ["no", "yes"]
    assert set(model.predict(TEST)) <= {"no", "yes"}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, object])
def test_arrays_of_any_type_of_number(dtype):
    x = TABLE[["age", "pressure"]].fillna(130).round().to_numpy().astype(dtype)
    model = PrivateClassifier(bounds={"x0": (0, 120), "x1": (50, 250)}, **CLASSES, **SHORT).fit(x, LABELS)
    expected = PrivateClassifier(bounds={"x0": (0, 120), "x1": (50, 250)}, **CLASSES, **SHORT)
    expected.fit(x.astype(np.float64), LABELS)
    np.testing.assert_array_equal(model.predict_proba(x), expected.predict_proba(x.astype(np.float64)))


def test_categories_of_an_array_of_objects():
    x = TABLE.to_numpy(dtype=object)
    given = {"bounds": {"x0": (0, 120), "x1": (50, 250)}, "categories": {"x2": ["A", "B", "C"]}}
    model = PrivateClassifier(**given, **CLASSES, **SHORT).fit(x, LABELS)
    same = PrivateClassifier(**GIVEN, **CLASSES, **SHORT).fit(TABLE, LABELS)
    np.testing.assert_array_equal(model.predict_proba(x), same.predict_proba(TABLE))


def test_a_missing_column_of_a_category_and_of_numbers_trains():
    table = TABLE.assign(pressure=np.nan, ward=None)
    model = PrivateClassifier(3.0, **GIVEN, **CLASSES, **FAST).fit(table, LABELS)
    assert model.evaluate(TEST.assign(pressure=np.nan, ward=None), TEST_LABELS)["auc"] > 0.8
    assert model.count_unusable(table, LABELS).count == 0


def test_secret_randomness_is_the_default_and_differs():
    made = [PrivateClassifier(**GIVEN, **CLASSES, epochs=1).fit(TABLE, LABELS) for _ in range(2)]
    assert "secure" in made[0].privacy_statement_
    a, b = (model.predict_proba(TEST) for model in made)
    assert np.abs(a - b).max() > 1e-6
    seeded = [PrivateClassifier(**GIVEN, **CLASSES, **SHORT).fit(TABLE, LABELS) for _ in range(2)]
    np.testing.assert_array_equal(*(model.predict_proba(TEST) for model in seeded))
    assert "whoever knows it can remove the noise" in seeded[0].privacy_statement_


def test_the_estimator_holds_no_row():
    table = TABLE.assign(age=TABLE["age"] + np.pi / 1000)
    model = PrivateClassifier(**GIVEN, **CLASSES, **SHORT).fit(table, LABELS)
    pickled = pickle.dumps(model)
    for value in table["age"][:50]:
        for kind in (np.float64, np.float32):
            assert kind(value).tobytes() not in pickled
            assert kind((value - 60) / 60).tobytes() not in pickled
    np.testing.assert_array_equal(pickle.loads(pickled).predict(TEST), model.predict(TEST))
    tensors = [v for v in vars(model).values() if isinstance(v, torch.Tensor | np.ndarray)]
    assert sum(v.size for v in tensors) == 2 + 3  # classes_ and feature_names_in_


def test_clones_pipelines_and_searches():
    def halved(table):
        return table.assign(age=table["age"] / 2)

    model = PrivateClassifier(**GIVEN, **CLASSES, **(FAST | {"epochs": 2}))
    assert clone(model).get_params() == model.get_params()
    pipeline = make_pipeline(FunctionTransformer(halved), model).fit(TABLE, LABELS)
    np.testing.assert_array_equal(pipeline.predict(TEST), pipeline[-1].predict(halved(TEST)))
    search = GridSearchCV(model, {"learning_rate": [1e-6, 0.1]}, cv=2).fit(TABLE, LABELS)
    assert search.best_params_ == {"learning_rate": 0.1}


def test_the_ledger_of_the_data_set_counts_every_fit_of_a_search(tmp_path):
    ledger = DataLedger.create(tmp_path / "patients.ledger", epsilon=5.0, delta=1e-5, accountant="rdp")
    options = FAST | {"epochs": 2, "delta": 1e-5, "data_ledger": ledger.path}
    model = PrivateClassifier(1.0, **GIVEN, **CLASSES, **options)
    cross_val_score(model, TABLE, LABELS, cv=3)
    assert len(ledger.spendings()) == 3
    assert ledger.epsilon() > 1.5 > model.fit(TABLE, LABELS).epsilon_


def test_columns_of_another_order_are_refused():
    model = PrivateClassifier(**GIVEN, **CLASSES, **SHORT).fit(TABLE, LABELS)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(TEST[["ward", "age", "pressure"]])
    assert set(BOUNDS) | set(CATEGORIES) == set(TEST)


def test_rows_without_a_known_target_are_not_scored():
    classifier = PrivateClassifier(**GIVEN, **CLASSES, **SHORT).fit(TABLE, LABELS)
    with pytest.raises(
        ValueError, match=rf"known label, one of .* to score, got none among {len(TEST)} rows"
    ):
        classifier.evaluate(TEST, ["?"] * len(TEST))
    regressor = PrivateRegressor(**GIVEN, target_bounds=(0, 10), **SHORT).fit(TABLE, LABELS)
    with pytest.raises(ValueError, match="known target to score, got none"):
        regressor.evaluate(TEST, [None] * len(TEST))
