"""Reads the arguments of estimators: tables, weights and labels, by their shapes and types only."""

from collections.abc import Collection, Hashable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_array, column_or_1d

from adamas.tabular.encoding import numbers


def as_table(x: Any, texts: Collection[Hashable] = ()) -> pd.DataFrame:
    """Returns a table. Columns of an array are called x0, x1, ...

    Args:
        x: A pandas DataFrame, or what NumPy makes an array of.
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
        return x
    # NumPy would make texts of all numbers in a list if one of them was a text.
    array = check_array(x, dtype=object if isinstance(x, list | tuple) else None, ensure_all_finite=False)
    names = [f"x{place}" for place in range(array.shape[1])]
    if array.dtype != object:
        return pd.DataFrame(array, columns=names)
    columns = {name: array[:, place] for place, name in enumerate(names)}
    return pd.DataFrame({name: v if name in texts else numbers(v) for name, v in columns.items()})


def as_target(y: Any) -> np.ndarray:
    """Returns a target as a vector of whatever it holds.

    Raises:
        ValueError: If it is no vector. Values raise nothing.
    """
    return np.asarray(column_or_1d(pd.Series(y).to_numpy() if isinstance(y, list) else y, warn=True))


def row_weights(sample_weight: Any, rows: int) -> np.ndarray:
    """Returns a weight for each row, in float64; NaN, so that the row takes no part, if it is not >= 0.

    Raises:
        ValueError: If the shape is not that of one number for each row, or one for all.
    """
    if sample_weight is None:
        return np.ones(rows)
    weights = np.asarray(sample_weight)
    if weights.ndim == 0:
        weights = np.full(rows, weights)
    if weights.ndim != 1:
        raise ValueError(f"Sample weights must be 1D array or scalar, got {weights.ndim}D array.")
    if len(weights) != rows:
        raise ValueError(f"sample_weight.shape == {weights.shape}, expected {(rows,)}!")
    found = numbers(weights)
    return np.where(np.isfinite(found) & (found >= 0), found, np.nan)
