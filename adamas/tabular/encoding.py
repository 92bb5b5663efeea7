"""Turns rows of a table into inputs of a model, each row by itself and by public rules only."""

import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from adamas.tabular.schema import Number, Schema


def encode(table: pd.DataFrame, schema: Schema) -> np.ndarray:
    """Returns the inputs of a model, one row for each row of a table, in float32.

    A number is clipped to its bounds and scaled to [-1, 1]. A missing one becomes 0, and a second input says
    so. A category becomes 1 in an input of its own. Nothing is computed over several rows, and no value of a
    row raises an error.

    Args:
        table: The rows; all columns of the schema are in it.
        schema: The public description of the columns.

    Example:
        >>> from adamas.tabular import Category
        >>> schema = Schema((Number("age", 0, 100), Category("ward", ("A", "B"))))
        >>> encode(pd.DataFrame({"age": [25, None, 1e9], "ward": ["B", "?", "A"]}), schema).tolist()
        [[-0.5, 0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0, 0.0]]
    """
    result = np.zeros((len(table), schema.width), dtype=np.float32)
    start = 0
    for column in schema.columns:
        part = result[:, start : start + column.width]
        if isinstance(column, Number):
            scaled = to_unit(numbers(table[column.name]), column.low, column.high)
            missing = np.isnan(scaled)
            part[:, 0] = np.where(missing, 0.0, scaled)
            part[:, 1] = missing
        else:
            codes = codes_of(table[column.name], column.values)
            part[np.arange(len(table)), np.where(codes < 0, len(column.values), codes)] = 1.0
        start += column.width
    return result


def numbers(values: np.ndarray | pd.Series) -> np.ndarray:
    """Returns values as float64. Anything that is not a number becomes NaN."""
    dtype = values.dtype
    if pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype):
        return np.asarray(pd.Series(values).to_numpy(dtype="float64", na_value=np.nan))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning would reveal the row
        return np.array([_number(value) for value in _elements(values)], dtype=np.float64)


def _number(value: Any) -> float:
    if isinstance(value, complex | np.complexfloating):
        return math.nan
    try:
        return float(value)
    except Exception:  # an error would reveal the row
        return math.nan


def _elements(values: np.ndarray | pd.Series) -> list[Any]:
    """Returns the elements, each as it is: pandas would infer a type from all of them."""
    objects = isinstance(values, np.ndarray) and values.dtype == object
    return list(values) if objects else pd.Series(values).to_numpy(dtype=object).tolist()


def to_unit(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Clips numbers to bounds and scales them to [-1, 1]; NaN stays."""
    middle = low + (high - low) / 2
    clipped = np.clip(np.clip(values, low, high) - middle, low - middle, high - middle)
    return np.asarray(np.clip(clipped / ((high - low) / 2), -1.0, 1.0))


def from_unit(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Clips numbers to [-1, 1] and scales them to bounds."""
    return np.asarray(np.clip(low + (high - low) / 2 * (1 + np.clip(values, -1.0, 1.0)), low, high))


def codes_of(values: np.ndarray | pd.Series, known: Sequence[Hashable]) -> np.ndarray:
    """Returns the place of each value among the known ones, -1 for all others."""
    places = {value: place for place, value in enumerate(known)}
    return np.array([_place(value, places) for value in _elements(values)], dtype=np.int64)


def _place(value: Any, places: Mapping[Hashable, int]) -> int:
    try:
        return places.get(value, -1)
    except Exception:  # it has no hash, such as a list; an error would reveal the row
        return -1
