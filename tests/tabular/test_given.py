"""The schema follows from what the user gives and from names and types of columns, never from a value."""

import numpy as np
import pytest

pd = pytest.importorskip("pandas")

from adamas.accounting.data_ledger import DataLedger  # noqa: E402
from adamas.tabular import Category, Number, PrivateClassifier, PrivateRegressor  # noqa: E402
from adamas.tabular.given import given_schema  # noqa: E402
from tests.support.patients import BOUNDS, CATEGORIES, FAST, GIVEN, patients  # noqa: E402

pytestmark = pytest.mark.slow  # importing pandas and scikit-learn takes seconds

TABLE, LABELS, TARGET = patients(60)


def test_bounds_and_categories_make_the_schema():
    schema, private = given_schema(TABLE, BOUNDS, CATEGORIES)
    assert schema.columns == (
        Number("age", 0, 120),
        Number("pressure", 50, 250),
        Category("ward", ("A", "B", "C")),
    )
    assert private == []
    one, _ = given_schema(TABLE, (-5, 5), CATEGORIES)
    assert one.columns[0] == Number("age", -5, 5)


def test_private_bounds_are_named():
    _, private = given_schema(TABLE, {"age": "private", "pressure": (0, 1)}, CATEGORIES)
    assert private == ["age"]
    _, private = given_schema(TABLE, "private", CATEGORIES)
    assert private == ["age", "pressure"]


def test_columns_of_truth_values_need_no_bounds():
    table = pd.DataFrame({"smokes": [True, False]})
    assert given_schema(table, None, None)[0].columns == (Number("smokes", 0, 1),)


def test_categories_of_a_type_need_a_confirmation():
    table = TABLE.astype({"ward": "category"})
    with pytest.raises(ValueError, match="may have been read off the data"):
        given_schema(table, BOUNDS, None)
    for confirmed in ("dtype", {"ward": "dtype"}):
        assert given_schema(table, BOUNDS, confirmed)[0].columns[2].values == ("A", "B", "C")
    with pytest.raises(ValueError, match="categorical type"):
        given_schema(TABLE, BOUNDS, {"ward": "dtype"})


@pytest.mark.parametrize(
    ("bounds", "categories", "message"),
    [
        (None, CATEGORIES, "Expected bounds of column 'age'"),
        ({"age": (0, 1)}, CATEGORIES, "Expected bounds of column 'pressure'"),
        (BOUNDS, None, "Expected column 'ward' of type"),
        (BOUNDS | {"agee": (0, 1)}, CATEGORIES, "among .* got one of 'agee'"),
        (BOUNDS, {"wards": ["A"]}, "among .* got one of 'wards'"),
        (BOUNDS | {"ward": (0, 1)}, CATEGORIES, "in both"),
        (BOUNDS, {"ward": []}, "one or more different values"),
        (BOUNDS, {"ward": [["A"], ["B"]]}, "one or more different values"),
        ((1, 0), CATEGORIES, "low < high"),
        ("privat", CATEGORIES, "to be a pair of numbers"),
    ],
)
def test_what_is_missing_or_wrong_is_named_with_a_remedy(bounds, categories, message):
    with pytest.raises(ValueError, match=message):
        given_schema(TABLE, bounds, categories)


@pytest.mark.parametrize("categories", ["dtypes", ["A"], {"ward": "A"}, {"ward": 3}])
def test_categories_that_are_none_are_refused(categories):
    with pytest.raises(TypeError, match="categories"):
        given_schema(TABLE, BOUNDS, categories)


def test_objects_and_dates_are_refused_by_their_type():
    mixed = pd.DataFrame({"a": pd.Series([1, "x"], dtype=object), "day": pd.to_datetime(["2020-01-01"] * 2)})
    for name in mixed:
        with pytest.raises(ValueError, match="categories"):
            given_schema(mixed[[name]], (0, 1), None)
    assert given_schema(mixed[["a"]], {"a": (0, 1)}, None)[0].columns == (Number("a", 0, 1),)


def test_labels_and_target_bounds_are_not_read_off_the_target():
    with pytest.raises(ValueError, match=r"the set of labels is private.*classes='public'"):
        PrivateClassifier(**GIVEN, **FAST).fit(TABLE, LABELS)
    with pytest.raises(ValueError, match="smallest and largest target are private"):
        PrivateRegressor(**GIVEN, **FAST).fit(TABLE, TARGET)
    with pytest.raises(ValueError, match="at least 2 classes"):
        PrivateClassifier(**GIVEN, **FAST, classes=[1]).fit(TABLE, LABELS)
    with pytest.raises(ValueError, match="different labels of one type"):
        PrivateClassifier(**GIVEN, **FAST, classes=[1, 1]).fit(TABLE, LABELS)
    with pytest.raises(ValueError, match="different labels of one type"):
        PrivateClassifier(**GIVEN, **FAST, classes=[0, "a"]).fit(TABLE, LABELS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"class_weight": {2: 1.0}}, "class_weight of labels among"),
        ({"class_weight": {1: -1.0}}, "class_weight"),
        ({"class_weight": {0: 0, 1: 0.0}}, "above 0 for at least one class"),
        ({"class_weight": "even"}, "class_weight='even'"),
        ({"rule": "adamm"}, "rule"),
        ({"schedule": "step"}, "schedule"),
        ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes"),
        ({"delta": 0.5}, "delta=0.5"),
        ({"epsilon": -1}, "epsilon"),
        ({"noise": "secure"}, "secure"),
        ({"statistics_share": 1.5, "class_weight": "balanced"}, "statistics_share"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused(change, message):
    estimator = PrivateClassifier(**GIVEN, **(FAST | {"classes": [0, 1]} | change))
    with pytest.raises(ValueError, match=message):
        estimator.fit(TABLE, LABELS)


def test_a_random_state_is_a_number():
    estimator = PrivateClassifier(**GIVEN, **(FAST | {"classes": [0, 1], "random_state": "a"}))
    with pytest.raises(TypeError, match="random_state='a'"):
        estimator.fit(TABLE, LABELS)


NUMBERS, TEXTS = np.arange(60) % 2, np.array(["no", "yes"] * 30)


@pytest.mark.filterwarnings("ignore:A column-vector y")
@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (NUMBERS, ["0", "1"]),
        (NUMBERS.astype(float), ["0", "1"]),
        (NUMBERS.astype(bool), ["False", "True"]),
        (pd.Series(NUMBERS, dtype="Int64"), ["0", "1"]),
        (pd.Series(NUMBERS).to_frame(), ["0", "1"]),
        (NUMBERS.astype(str), [0, 1]),
        (NUMBERS.astype(str).astype("S"), ["0", "1"]),
        (pd.Series(NUMBERS.astype(str), dtype="string"), [0, 1]),
        (pd.Series(NUMBERS).astype("category"), ["0", "1"]),
    ],
)
def test_labels_that_cannot_be_one_of_the_classes_are_refused_by_their_type(tmp_path, y, classes):
    path = tmp_path / "a.ledger"
    ledger = DataLedger.create(path, epsilon=5, delta=1e-5)
    estimator = PrivateClassifier(1.0, **GIVEN, **FAST, classes=classes, data_ledger=ledger)
    for look in (estimator.fit, estimator.count_unusable):
        with pytest.raises(TypeError, match=r"Expected y of .* Give both as numbers, or both as texts"):
            look(TABLE, y)
    assert ledger.epsilon() == 0
    fitted = PrivateClassifier(1.0, **GIVEN, **FAST, classes=classes).fit(TABLE, [classes[0]] * 60)
    with pytest.raises(TypeError, match="Expected y of"):
        fitted.evaluate(TABLE, y)


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (NUMBERS.astype(float), [0, 1]),
        (NUMBERS.astype(bool), [0, 1]),
        (NUMBERS, [False, True]),
        (TEXTS, ["no", "yes"]),
        (pd.Series(TEXTS, dtype="category"), ["no", "yes"]),
        (NUMBERS.tolist(), ["0", "1"]),
        (tuple(TEXTS.tolist()), [0, 1]),
        (TEXTS.astype(object), [0, 1]),
        (pd.Series(NUMBERS, dtype=object), ["0", "1"]),
    ],
)
def test_what_has_no_type_of_its_own_may_hold_anything(y, classes):
    estimator = PrivateClassifier(1.0, **GIVEN, **FAST, classes=classes)
    assert estimator.count_unusable(TABLE, y).total == 60


def test_a_name_of_two_columns_is_refused():
    table = TABLE.set_axis(["age", "age", "ward"], axis="columns")
    with pytest.raises(ValueError, match="got several of name 'age'") as raised:
        PrivateClassifier(1.0, **GIVEN, **FAST, classes=[0, 1]).fit(table, LABELS)
    assert type(raised.value) is ValueError


def test_bounds_may_be_arrays():
    bounds = {"age": np.array([0, 120]), "pressure": np.array([50.0, 250.0])}
    assert given_schema(TABLE, bounds, CATEGORIES) == given_schema(TABLE, BOUNDS, CATEGORIES)
    for wrong in (np.array([0, 120, 3]), np.array([[0, 1]]), np.array([False, True]), np.array(["0", "1"])):
        with pytest.raises(ValueError, match="to be a pair of numbers"):
            given_schema(TABLE, wrong, CATEGORIES)
    with pytest.raises(ValueError, match="low < high"):
        given_schema(TABLE, np.array([0, np.nan]), CATEGORIES)


DAYS = pd.date_range("2020", periods=60)


@pytest.mark.parametrize(
    ("column", "options"),
    [
        (DAYS, {"bounds": {"a": (0, 1)}}),
        (DAYS, {"bounds": {"a": "private"}}),
        (DAYS.tz_localize("UTC"), {"bounds": {"a": (0, 1)}}),
        (DAYS - DAYS[0], {"bounds": {"a": (0, 1)}}),
        (DAYS.to_period("D"), {"bounds": {"a": (0, 1)}}),
        (pd.array(DAYS, dtype="timestamp[ns][pyarrow]"), {"bounds": {"a": (0, 1)}}),
        (NUMBERS, {"categories": {"a": ["0", "1"]}}),
        (NUMBERS.astype(float), {"categories": {"a": ["0", "1"]}}),
        (NUMBERS.astype(bool), {"categories": {"a": ["True", "False"]}}),
        (pd.Series(NUMBERS).astype("category"), {"categories": {"a": ["0", "1"]}}),
        (pd.array(TEXTS, dtype="string"), {"categories": {"a": [0, 1]}}),
        (DAYS, {"categories": {"a": ["2020-01-01"]}}),
    ],
)
def test_a_column_that_cannot_hold_what_is_said_of_it_is_refused_by_its_type(tmp_path, column, options):
    ledger = DataLedger.create(tmp_path / "a.ledger", epsilon=5, delta=1e-5)
    estimator = PrivateClassifier(1.0, **options, **FAST, classes=[0, 1], data_ledger=ledger)
    table = pd.DataFrame({"a": column})
    with pytest.raises(TypeError, match=r"Expected column 'a'.* (of texts|of numbers|to hold numbers).*got"):
        estimator.fit(table, LABELS)
    assert ledger.epsilon() == 0


@pytest.mark.parametrize(
    ("column", "categories"),
    [
        (NUMBERS, [0, 1]),
        (NUMBERS.astype(float), [0, 1]),
        (NUMBERS.astype(bool), [False, True]),
        (NUMBERS.astype(object), ["0", "1"]),
        (NUMBERS, ["0", 1]),
        (TEXTS, ["no", "yes"]),
        (DAYS, [DAYS[0], DAYS[1]]),
    ],
)
def test_a_column_that_can_hold_a_category_is_taken(column, categories):
    table = pd.DataFrame({"a": column})
    estimator = PrivateClassifier(1.0, categories={"a": categories}, **FAST, classes=[0, 1], epochs=1)
    assert estimator.fit(table, LABELS).n_steps_ == 10


def test_types_are_checked_before_a_prediction_and_a_missing_text_has_none():
    texts = pd.DataFrame({"ward": NUMBERS.astype(str), "age": 30.0})
    given = {"bounds": {"age": (0, 120)}, "categories": {"ward": ["0", "1"]}}
    model = PrivateClassifier(1.0, **given, **FAST, classes=[0, 1], epochs=1).fit(texts, LABELS)
    with pytest.raises(TypeError, match="Expected column 'ward' of texts"):
        model.predict(texts.assign(ward=NUMBERS))
    with pytest.raises(TypeError, match="Expected column 'age', which has bounds"):
        model.predict(texts.assign(age=DAYS))
    missing = [model.predict_proba(texts.assign(ward=value)) for value in (None, np.nan)]
    np.testing.assert_array_equal(*missing)


@pytest.mark.parametrize("classes", [3, [None, 1], [[0], [1]], [float("nan"), 1], [True, 1]])
def test_classes_that_are_no_labels_are_refused_by_name(classes):
    with pytest.raises(ValueError, match=r"Expected classes=.*different labels of one type"):
        PrivateClassifier(1.0, **GIVEN, **FAST, classes=classes).fit(TABLE, LABELS)


def test_a_column_alone_is_no_table_and_the_error_says_what_is():
    with pytest.raises(ValueError, match=r"2D array.*a Series of pandas. Give a DataFrame, such as to_frame"):
        PrivateClassifier(1.0, bounds=(0, 120), **FAST, classes=[0, 1]).fit(TABLE["age"], LABELS)


def test_a_delta_that_is_too_large_is_refused_with_a_remedy_that_the_estimator_has():
    with pytest.raises(
        ValueError, match=r"delta=0.5 < 1/N.* for N = 60 rows.*Lower delta, or leave it out"
    ) as raised:
        PrivateClassifier(1.0, delta=0.5, **GIVEN, **FAST, classes=[0, 1]).fit(TABLE, LABELS)
    assert "allow_large_delta" not in str(raised.value)
