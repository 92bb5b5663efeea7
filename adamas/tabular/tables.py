"""Reads the arguments of estimators: tables, weights and labels, by their shapes and types only."""

import warnings
from collections.abc import Collection, Hashable, Mapping, Sequence, Set
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionArray
from scipy.sparse import issparse
from sklearn.exceptions import DataConversionWarning

from adamas.tabular.encoding import numbers
from adamas.tabular.schema import Category, Schema

_NO_NUMBERS = ("dates", "durations", "periods")


def as_table(x: Any, texts: Collection[Hashable] = ()) -> pd.DataFrame:
    """Returns a table. Columns of an array are called x0, x1, ...

    Args:
        x: A pandas DataFrame, an array, or a list of rows.
        texts: Columns with categories; the other columns of an array of Python objects are numbers.

    Raises:
        ValueError, TypeError: If its shape or types are not those of a table. Values raise nothing.
    """
    if isinstance(x, pd.DataFrame):
        if not len(x) or not len(x.columns):
            raise ValueError(
                f"Found a table with {len(x)} sample(s) and {len(x.columns)} feature(s) (shape={x.shape}) "
                "while a minimum of 1 is required."
            )
        twice = x.columns[x.columns.duplicated()]
        if len(twice):
            raise ValueError(f"Expected columns of different names, got several of name {twice[0]!r}.")
        return x
    if isinstance(x, list | tuple):
        array = _cells(x)
    elif isinstance(x, pd.Series | pd.Index | ExtensionArray):
        raise ValueError(
            f"Expected 2D array, got 1D array instead: a {type(x).__name__} of pandas. Give a DataFrame, "
            "such as to_frame() of a column."
        )
    else:
        array = _own_array(x, "a table")
        if array.ndim != 2:
            raise ValueError(
                f"Expected 2D array, got {array.ndim}D array instead. Reshape your data: a row for each "
                "sample."
            )
    if not array.size:
        raise ValueError(
            f"Found array with {array.shape[0]} sample(s) and {array.shape[1]} feature(s) "
            f"(shape={array.shape}) while a minimum of 1 is required."
        )
    names = [f"x{place}" for place in range(array.shape[1])]
    if array.dtype != object:
        return pd.DataFrame(array, columns=names)
    columns = {name: array[:, place] for place, name in enumerate(names)}
    return pd.DataFrame(
        {name: pd.Series(v, dtype=object) if name in texts else numbers(v) for name, v in columns.items()}
    )


def as_target(y: Any) -> np.ndarray:
    """Returns a target as a vector, each value as it is.

    Raises:
        ValueError, TypeError: If its shape or type is not that of a vector. Values raise nothing.
    """
    vector = _vector(y, "y")
    if vector.ndim == 2 and vector.shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected.", DataConversionWarning, stacklevel=2
        )
        vector = vector[:, 0]
    if vector.ndim != 1:
        raise ValueError(f"y should be a 1d array, got an array of shape {vector.shape} instead.")
    return vector


def check_kind(y: Any, classes: np.ndarray) -> None:
    """Raises if the types show that no label of `y` can be one of the classes; reads no values.

    Args:
        y: The target. What has no type of its own, such as a list or an array of objects, may hold anything.
        classes: The labels.

    Raises:
        TypeError: If one of them holds numbers, and the other one texts.
    """
    if isinstance(y, pd.DataFrame) and len(y.columns) == 1:
        y = y.iloc[:, 0]
    pandas = isinstance(y, pd.Series | pd.Index | pd.DataFrame | ExtensionArray)
    dtype = getattr(y, "dtype", np.dtype(object)) if pandas else _vector(y, "y").dtype
    kind, expected = _kind(dtype), _kind(classes.dtype)
    if kind is not None and expected is not None and kind != expected:
        raise TypeError(
            f"Expected y of {expected}, as classes={classes.tolist()!r} are, got y of {kind} (type {dtype}): "
            "no row would have a known label. Give both as numbers, or both as texts."
        )


def check_columns(table: pd.DataFrame, schema: Schema, *, fitted: bool = False) -> None:
    """Raises if no value of a column can be what the schema says, as the types say; values are not looked at.

    Args:
        table: The rows.
        schema: The columns.
        fitted: Whether the rows are for a model that is fitted. Among few rows, a column of texts may be
            missing in all, and has then the type of floats.

    Raises:
        TypeError: If a column of dates has bounds, or if one of the column and its categories holds numbers,
            and the other one texts.
    """
    for column in schema.columns:
        dtype = table[column.name].dtype
        kind = _kind(dtype)
        if isinstance(column, Category):
            expected = _kind_of_all(column.values)
            missing = fitted and pd.api.types.is_float_dtype(dtype)
            if kind is not None and expected is not None and kind != expected and not missing:
                raise TypeError(
                    f"Expected column {column.name!r} of {expected}, as its categories "
                    f"{list(column.values)!r} are, got {kind} (type {dtype}): no row would have a known "
                    "category. Give both as numbers, or both as texts."
                )
        elif kind in _NO_NUMBERS:
            raise TypeError(
                f"Expected column {column.name!r}, which has bounds, to hold numbers, got {kind} (type "
                f"{dtype}): all would count as missing. Make numbers of them, such as days since a public "
                "date, or leave the column out."
            )


def _kind_of_all(values: Sequence[Any]) -> str | None:
    """Tells what values are, if all are the same."""
    kinds = {
        "texts" if isinstance(value, str) else "numbers" if isinstance(value, Real | np.bool_) else None
        for value in values
    }
    return kinds.pop() if len(kinds) == 1 else None


def _kind(dtype: Any) -> str | None:
    """Names the kind of a type's values; None if they may be anything."""
    if isinstance(dtype, pd.PeriodDtype):
        return "periods"
    if isinstance(dtype, pd.CategoricalDtype):
        return _kind(dtype.categories.dtype)
    if isinstance(dtype, pd.StringDtype):
        return "texts"
    if pd.api.types.is_numeric_dtype(dtype):  # truth values, too, which equal 0 and 1
        return "numbers"
    return {"U": "texts", "S": "bytes", "M": "dates", "m": "durations"}.get(getattr(dtype, "kind", "O"))


def row_weights(sample_weight: Any, rows: int) -> np.ndarray:
    """Returns a weight for each row, in float64; NaN, so that the row takes no part, if it is not >= 0.

    Raises:
        ValueError, TypeError: If its shape or type is not that of one number for each row, or one for all.
    """
    if sample_weight is None:
        return np.ones(rows)
    if isinstance(sample_weight, Real):
        sample_weight = np.full(rows, float(sample_weight))
    weights = _vector(sample_weight, "sample_weight")
    if weights.ndim == 0:
        weights = np.full(rows, weights)
    if weights.ndim != 1:
        raise ValueError(f"Sample weights must be 1D array or scalar, got {weights.ndim}D array.")
    if len(weights) != rows:
        raise ValueError(f"sample_weight.shape == {weights.shape}, expected {(rows,)}!")
    found = numbers(weights)
    return np.where(np.isfinite(found) & (found >= 0), found, np.nan)


def _vector(values: Any, name: str) -> np.ndarray:
    """Returns values as an array. Elements of a list or another container without a type stay as they are."""
    if isinstance(values, pd.Series | pd.Index | pd.DataFrame | ExtensionArray):
        if isinstance(values, pd.Series | pd.Index):
            _check_real(values.dtype, name)
        return np.asarray(values.to_numpy(dtype=object))
    typed = hasattr(values, "__array__") or isinstance(values, str | bytes | Mapping | Set)
    if typed or not isinstance(values, Collection):
        return _own_array(values, name)
    return np.fromiter(values, dtype=object, count=len(values))


def _cells(rows: Sequence[Any]) -> np.ndarray:
    """Returns a list of rows as a matrix of objects. NumPy would look at all values for a type or a shape."""
    shapes = {_length(row) for row in rows}
    if None in shapes:
        raise ValueError(
            "Expected 2D array, got a list that holds something else than rows. Reshape your data: a row for "
            "each sample."
        )
    if len(shapes) > 1:
        raise ValueError("Expected rows of the same length in a list of rows.")
    width = shapes.pop() if shapes else 0
    cells = np.fromiter((cell for row in rows for cell in row), dtype=object, count=len(rows) * (width or 0))
    return cells.reshape(len(rows), width or 0)


def _length(row: Any) -> int | None:
    return len(row) if isinstance(row, Collection) and not isinstance(row, str | bytes | Mapping) else None


def _own_array(values: Any, name: str) -> np.ndarray:
    """Returns the array of something that has a type of its own."""
    if issparse(values):
        raise TypeError(f"Expected {name} to be dense, got sparse data. Give its toarray().")
    if hasattr(values, "__arrow_c_stream__") or hasattr(values, "__arrow_c_array__"):
        raise TypeError(
            f"Expected {name} of pandas, NumPy or Python, got {type(values).__name__}: NumPy would make "
            "floats of whole numbers if one of them was missing. Give it as pandas with nullable types, or "
            "as a list."
        )
    if not hasattr(values, "__array__"):
        raise TypeError(f"Expected {name} to be an array, a list or of pandas, got {type(values).__name__}.")
    array = np.asarray(values)
    _check_real(array.dtype, name)
    return array


def _check_real(dtype: Any, name: str) -> None:
    if pd.api.types.is_complex_dtype(dtype):
        raise ValueError(f"Complex data not supported: expected real values in {name}, got type {dtype}.")
