"""Makes the schema from arguments, and from the names and types of columns; it reads no values."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from adamas.tabular.schema import Category, Column, Number, Schema, checked_bounds

PRIVATE = "private"
"""Asks for noisy bounds, which the budget pays for."""

DTYPE = "dtype"
"""Confirms that the categories of a pandas dtype are public."""

_UNIT = (-1.0, 1.0)  # stands for private bounds until they are known


def given_schema(table: pd.DataFrame, bounds: object, categories: object) -> tuple[Schema, list[Hashable]]:
    """Returns the columns of a table, and the names of those whose bounds the budget pays for.

    Args:
        table: The table. Only names and types of its columns are looked at.
        bounds: A pair for all numbers, or one for each by name; `PRIVATE` in place of a pair.
        categories: Values by name of column; `DTYPE` in place of values, or for all columns.

    Raises:
        ValueError, TypeError: If something is missing or contradicts the table.
    """
    names = list(table.columns)
    texts = _categories(table, categories)
    _known(bounds, names, "bounds")
    columns: list[Column] = []
    private: list[Hashable] = []
    for name in names:
        if name in texts:
            if isinstance(bounds, Mapping) and name in bounds:
                raise ValueError(f"Expected column {name!r} in bounds or in categories, got it in both.")
            columns.append(Category(name, texts[name]))
            continue
        pair = _pair(name, table[name].dtype, bounds)
        if pair is None:
            private.append(name)
        columns.append(Number(name, *(pair or _UNIT)))
    return Schema(tuple(columns)), private


def with_bounds(schema: Schema, found: Mapping[Hashable, tuple[float, float]]) -> Schema:
    """Replaces bounds of columns."""
    return Schema(
        tuple(
            Number(column.name, *found[column.name]) if column.name in found else column
            for column in schema.columns
        )
    )


def _categories(table: pd.DataFrame, categories: object) -> dict[Hashable, tuple[Hashable, ...]]:
    if categories is None:
        categories = {}
    if categories == DTYPE:
        categories = {name: DTYPE for name in table.columns if _declared(table[name].dtype) is not None}
    if not isinstance(categories, Mapping):
        raise TypeError(
            f"Expected categories={categories!r} to be values by name of column, or {DTYPE!r} for the "
            "categories that the table's types declare."
        )
    _known(categories, list(table.columns), "categories")
    return {name: _values(name, table[name].dtype, values) for name, values in categories.items()}


def _values(name: Hashable, dtype: Any, values: object) -> tuple[Hashable, ...]:
    if isinstance(values, str) and values == DTYPE:
        declared = _declared(dtype)
        if declared is None:
            raise ValueError(
                f"Expected column {name!r} of a pandas categorical type with categories={DTYPE!r}, got "
                f"{dtype}."
            )
        return declared
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"Expected categories of {name!r} to be a list of values, got {values!r}.")
    return tuple(values)


def _declared(dtype: Any) -> tuple[Hashable, ...] | None:
    return tuple(dtype.categories.tolist()) if isinstance(dtype, pd.CategoricalDtype) else None


def _known(given: object, names: Sequence[Hashable], option: str) -> None:
    if isinstance(given, Mapping):
        for name in given:
            if name not in names:
                raise ValueError(f"Expected {option} of columns among {list(names)!r}, got one of {name!r}.")


def _pair(name: Hashable, dtype: Any, bounds: object) -> tuple[float, float] | None:
    """Returns the bounds of a numeric column; None if the budget pays for them."""
    named = isinstance(bounds, Mapping) and name in bounds
    if pd.api.types.is_complex_dtype(dtype):
        raise ValueError(f"Complex data not supported: expected real values in column {name!r}, got {dtype}.")
    if pd.api.types.is_bool_dtype(dtype) and not named:
        return 0.0, 1.0
    if not named:
        _check_numeric(name, dtype)
    wanted = bounds.get(name) if isinstance(bounds, Mapping) else bounds
    if isinstance(wanted, str) and wanted == PRIVATE:
        return None
    if wanted is None:
        raise ValueError(
            f"Expected bounds of column {name!r}: its smallest and largest value are private, so nothing is "
            f"read off the data. Give bounds={{{name!r}: (low, high)}} from what is known in public, or "
            f"bounds={PRIVATE!r}, which pays for noisy ones from the budget."
        )
    return checked_bounds(wanted, f"bounds of {name!r}" if named else "bounds")


def _check_numeric(name: Hashable, dtype: Any) -> None:
    if _declared(dtype) is not None:
        raise ValueError(
            f"Expected categories of column {name!r}: its categorical type may have been read off the data, "
            f'as astype("category") does. Give categories={{{name!r}: [...]}}, or confirm by '
            f"categories={{{name!r}: {DTYPE!r}}} that the categories which the type declares are public."
        )
    if not pd.api.types.is_numeric_dtype(dtype):
        raise ValueError(
            f"Expected column {name!r} of type {dtype} to have categories or bounds of its own. Give "
            f"categories={{{name!r}: [...]}} or bounds={{{name!r}: (low, high)}}, from what is known in "
            "public; or leave the column out."
        )
