"""Rows become inputs of a model one by one, whatever is in them."""

import math

import numpy as np
import pytest

pd = pytest.importorskip("pandas")

from adamas.tabular import Category, Number, Schema  # noqa: E402
from adamas.tabular.encoding import encode, from_unit, to_unit  # noqa: E402
from tests.support.patients import BOUNDS, CATEGORIES, patients  # noqa: E402

pytestmark = pytest.mark.slow  # importing pandas and scikit-learn takes seconds

SCHEMA = Schema((Number("age", 0, 120), Number("pressure", 50, 250), Category("ward", ("A", "B", "C"))))

ODD = [
    math.nan,
    None,
    math.inf,
    -math.inf,
    1e308,
    -1e308,
    10**400,
    "x",
    "",
    [1],
    {"a": 1},
    3 + 4j,
    b"1",
    True,
]


def test_numbers_are_scaled_by_their_bounds_and_categories_are_one_hot():
    table, _, _ = patients()
    found = encode(table, SCHEMA)
    age = (table["age"] - 60) / 60
    np.testing.assert_allclose(found[:, 0], age, rtol=1e-6)
    assert (found[:, 1] == 0).all()
    missing = table["pressure"].isna()
    np.testing.assert_array_equal(found[:, 3], missing)
    assert (found[missing, 2] == 0).all()
    expected = pd.get_dummies(table["ward"], dtype=float).to_numpy()
    np.testing.assert_array_equal(found[:, 4:7], expected)
    assert found.dtype == np.float32
    assert found.shape == (len(table), SCHEMA.width)


def test_each_row_is_encoded_by_itself():
    table, _, _ = patients(40)
    together = encode(table, SCHEMA)
    alone = np.concatenate([encode(table.iloc[i : i + 1], SCHEMA) for i in range(len(table))])
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:12])
def test_an_odd_value_changes_its_own_row_only_and_raises_nothing(value):
    table, _, _ = patients(5)
    odd = table.astype(object)
    for column in odd:
        odd.at[2, column] = value
    found, expected = encode(odd, SCHEMA), encode(table, SCHEMA)
    others = [0, 1, 3, 4]
    np.testing.assert_array_equal(found[others], expected[others])
    assert np.isfinite(found).all()
    assert (np.abs(found) <= 1).all()
    assert found[2, 7] == 1  # no ward that is known


@pytest.mark.parametrize("dtype", ["Int64", "Float64", "float32", "int8", "boolean"])
def test_types_of_pandas_are_numbers(dtype):
    values = pd.Series([0, 1, 1, 0]).astype(dtype)
    found = encode(pd.DataFrame({"a": values}), Schema((Number("a", 0, 1),)))
    np.testing.assert_array_equal(found[:, 0], [-1, 1, 1, -1])


def test_values_of_extreme_bounds_stay_within_them():
    low, high = -8e307, 8e307
    values = np.array([low, 0.0, high, math.inf, -math.inf, math.nan])
    unit = to_unit(values, low, high)
    np.testing.assert_array_equal(unit, [-1, 0, 1, 1, -1, math.nan])
    np.testing.assert_array_equal(from_unit(unit[:5], low, high), [low, 0, high, high, low])


@pytest.mark.parametrize("bounds", [(1, 1), (2, 1), (0, math.inf), (math.nan, 1), ("a", "b"), 3, (1, 2, 3)])
def test_bounds_that_are_none_are_refused(bounds):
    low, high = bounds if isinstance(bounds, tuple) and len(bounds) == 2 else (bounds, 0)
    with pytest.raises(ValueError, match="bounds of 'age'"):
        Number("age", low, high)


def test_a_schema_has_different_columns_and_categories():
    with pytest.raises(ValueError, match="different names"):
        Schema((Number("a", 0, 1), Number("a", 0, 1)))
    with pytest.raises(ValueError, match="different values"):
        Category("ward", ("A", "A"))
    assert {"age", "pressure"} == set(BOUNDS)
    assert set(CATEGORIES) == {"ward"}
