"""Tables in files, CSV and Parquet, as data sets: read by a schema that is given, never by their values."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.utils.data import TensorDataset

from adamas.data.base import Data
from adamas.tabular.encoding import codes_of, encode, numbers, to_unit
from adamas.tabular.schema import Category, Column, Number, Schema, checked_bounds

PUBLIC = "public"
"""Confirms that the set of labels in a file is public."""

_EMPTY: Any = {"keep_default_na": False, "na_values": [""]}  # texts such as "NA" may be categories


def column_names(path: str | Path) -> list[str]:
    """Returns the names of the columns of a file, which are public."""
    path = Path(path)
    if path.suffix == ".csv":
        return [str(name) for name in pd.read_csv(path, nrows=0, skipinitialspace=True).columns]
    return list(_parquet().read_schema(path).names)


def column_types(path: str | Path) -> dict[str, str]:
    """Returns "number" or "text" for each column of a Parquet file; CSV has no types, so nothing for it."""
    path = Path(path)
    if path.suffix == ".csv":
        return {}
    empty = _parquet().read_schema(path).empty_table().to_pandas()
    return {
        str(name): "number" if pd.api.types.is_numeric_dtype(dtype) else "text"
        for name, dtype in empty.dtypes.items()
    }


def read_table(path: str | Path, columns: Sequence[str]) -> pd.DataFrame:
    """Reads columns of a file. Values of CSV stay texts, so that no row decides on the type of others."""
    path = Path(path)
    known = column_names(path)
    for name in columns:
        if name not in known:
            raise ValueError(f"Expected columns of {path} among {known}, got {name!r}.")
    if path.suffix != ".csv":
        return pd.read_parquet(path, columns=list(columns))
    table = pd.read_csv(path, usecols=list(columns), dtype=str, skipinitialspace=True, **_EMPTY)
    return table[list(columns)].apply(lambda texts: texts.str.strip())


def load_table(
    path: str,
    *,
    target: str,
    classes: Sequence[Any] | str | None = None,
    target_bounds: Sequence[float] | None = None,
    bounds: Mapping[str, Sequence[float]] | None = None,
    categories: Mapping[str, Sequence[Any]] | None = None,
    test_file: str | None = None,
    test_fraction: float = 0.2,
) -> Data:
    """Loads a table as a data set.

    A training row without a known target has inputs of NaN, so that its gradient takes no part. Such a row is
    left out of the test rows.

    Args:
        path: A file that ends in .csv or .parquet.
        target: The column to predict.
        classes: Its labels; "public" reads them off the file, where their set is public.
        target_bounds: Or its least and largest value, for a number.
        bounds: The least and largest value of numeric columns, by name. Columns without bounds or categories
            are not read.
        categories: The values of other columns, by name.
        test_file: Another file, with the test rows.
        test_fraction: Or the share of the rows that are test rows. Only the place of a row decides.
    """
    if (classes is None) == (target_bounds is None):
        raise ValueError(
            f"Expected either classes of {target!r}, for labels, or target_bounds, for a number: neither is "
            f"read off the data. Give classes={PUBLIC!r} if the set of labels is public."
        )
    text = Path(path).suffix == ".csv"
    schema = _schema(bounds or {}, categories or {}, text=text)
    if target in (bounds or {}) or target in (categories or {}):
        raise ValueError(f"Expected the target {target!r} to be no other column.")
    columns = [str(column.name) for column in schema.columns]
    rows = read_table(path, [*columns, target])
    known = None if target_bounds is not None else _labels(classes, rows[target], text=text)
    pair = None if target_bounds is None else checked_bounds(target_bounds, "target_bounds")
    train = _examples(rows, schema, target, known, pair)
    data = Data(path, train, train, (schema.width,), 1 if known is None else len(known), target_bounds=pair)
    if test_file is None:
        data = replace(data.with_validation(test_fraction), name=path)
    else:
        if Path(test_file).suffix != Path(path).suffix:
            raise ValueError(f"Expected test_file={test_file!r} of the same kind as {path!r}.")
        tested = read_table(test_file, [*columns, target])
        data = replace(data, test=_examples(tested, schema, target, known, pair))
    return replace(data, test=_usable(data.test))


def _schema(bounds: Mapping[str, Any], categories: Mapping[str, Any], *, text: bool) -> Schema:
    for name in bounds:
        if name in categories:
            raise ValueError(f"Expected column {name!r} in bounds or in categories, got it in both.")
    columns: list[Column] = [
        Number(name, *checked_bounds(pair, f"bounds of {name!r}")) for name, pair in bounds.items()
    ]
    columns += [Category(name, _texts(values, text=text)) for name, values in categories.items()]
    if not columns:
        raise ValueError(
            "Expected bounds or categories of one column at least: nothing is read off the data."
        )
    return Schema(tuple(columns))


def _texts(values: Sequence[Any], *, text: bool) -> tuple[Any, ...]:
    if isinstance(values, str):
        raise TypeError(f"Expected a list of values, got the text {values!r}.")
    return tuple(str(value) for value in values) if text else tuple(values)


def _labels(classes: Any, values: pd.Series, *, text: bool) -> tuple[Any, ...]:
    if isinstance(classes, str):
        if classes != PUBLIC:
            raise ValueError(f"Expected classes={classes!r} to be labels, or {PUBLIC!r}.")
        known = tuple(sorted(values.dropna().unique().tolist()))
    else:
        known = _texts(classes, text=text)
    if len(set(known)) < len(known) or len(known) < 2:
        raise ValueError(f"Expected two or more different classes, got {list(known)!r}.")
    return known


def _examples(
    rows: pd.DataFrame,
    schema: Schema,
    target: str,
    classes: tuple[Any, ...] | None,
    pair: tuple[float, float] | None,
) -> TensorDataset:
    inputs = encode(rows, schema)
    if pair is not None:
        unit = to_unit(numbers(rows[target]), *pair)
        unknown = np.isnan(unit)
        labels = torch.from_numpy(np.where(unknown, 0.0, unit)).float()
    else:
        assert classes is not None
        codes = codes_of(rows[target], classes)
        unknown = codes < 0
        labels = torch.from_numpy(np.maximum(codes, 0))
    inputs[unknown] = np.nan
    return TensorDataset(torch.from_numpy(inputs), labels)


def _usable(examples: Any) -> TensorDataset:
    x, y = examples.tensors
    kept = x.isfinite().all(1)
    return TensorDataset(x[kept], y[kept])


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Parquet files need pyarrow, which is not installed. Run: pip install 'adamas[tables]'",
            name=error.name,
        ) from error
    return pyarrow.parquet
