"""Reads CSV and Parquet files as data sets, by a given schema and never by their values."""

import warnings
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
    path = _file(path)
    if path.suffix == ".csv":
        return [str(name) for name in _csv(path, nrows=0).columns]
    return list(_stored(path).names)


def column_types(path: str | Path) -> dict[str, str]:
    """Returns "number" or "text" for each column of a Parquet file; nothing for CSV, which has no types."""
    path = _file(path)
    if path.suffix == ".csv":
        return {}
    empty = _stored(path).empty_table().to_pandas()
    return {
        str(name): "number" if pd.api.types.is_numeric_dtype(dtype) else "text"
        for name, dtype in empty.dtypes.items()
    }


def read_table(path: str | Path, columns: Sequence[str]) -> pd.DataFrame:
    """Reads columns of a file. Values of CSV stay texts, so that no row decides on the type of others."""
    path = _file(path)
    known = column_names(path)
    for name in columns:
        if name not in known:
            raise ValueError(f"Expected columns of {path} among {known}, got {name!r}.")
        if _header(path).count(name) > 1:
            raise ValueError(f"Expected {path} to have one column {name!r}, got several.")
    if path.suffix != ".csv":
        with _parquet().ParquetFile(path) as file:
            return _of_parquet(file.read(columns=list(columns)), path)
    table = _csv(path, usecols=list(columns), dtype=str, **_EMPTY)
    return table[list(columns)].apply(lambda texts: texts.str.strip())


def _file(path: str | Path) -> Path:
    """Returns the path of a table; raises unless it is a file that ends as one."""
    path = Path(path)
    if path.suffix not in (".csv", ".parquet"):
        raise ValueError(f"Expected a table in a file that ends in .csv or .parquet, got {path}.")
    if not path.is_file():
        raise FileNotFoundError(f"Expected a file {path}, found none.")
    return path


def _header(path: Path) -> list[str]:
    """Returns the names of the columns as the file has them; pandas would number duplicates."""
    if path.suffix != ".csv":
        return column_names(path)
    return list(_csv(path, nrows=1, header=None, dtype=str, **_EMPTY).iloc[0])


def _csv(path: Path, **options: Any) -> pd.DataFrame:
    """Reads a CSV file. A byte that is not UTF-8 becomes U+FFFD."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pd.errors.ParserWarning)  # of a row with more fields
            # Otherwise a longer first row would shift the columns of all rows.
            return pd.read_csv(
                path, skipinitialspace=True, index_col=False, encoding_errors="replace", **options
            )
    except pd.errors.EmptyDataError:
        raise ValueError(f"Expected {path} to begin with a line of names of columns, found none.") from None
    except pd.errors.ParserError:  # names the row
        raise ValueError(
            f"Expected {path} to be a CSV file whose quotes are all closed. Write it again with a program "
            "that quotes by the rules of CSV."
        ) from None


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

    A training row without a known target gets inputs of NaN, so that it takes no part. A test row without one
    is left out.

    Args:
        path: A file that ends in .csv or .parquet.
        target: The column to predict.
        classes: Its labels; "public" confirms that their set is public, and reads it off the file.
        target_bounds: The usual range of a target that is a number; give it instead of classes.
        bounds: The usual range of numeric columns, by name. Columns without bounds or categories
            are not read.
        categories: The values of other columns, by name.
        test_file: Another file, with the test rows.
        test_fraction: Without test_file, the share of test rows. Only the place of a row decides.
    """
    if (classes is None) == (target_bounds is None):
        raise ValueError(
            f"Expected either classes of {target!r}, for labels, or target_bounds, for a number: neither is "
            f"read off the data. Give classes={PUBLIC!r} if the set of labels is public."
        )
    text = Path(path).suffix == ".csv"
    schema = _schema(bounds or {}, categories or {}, text=text)
    if test_file is not None:
        _file(test_file)
    if target in (bounds or {}) or target in (categories or {}):
        raise ValueError(f"Expected the target {target!r} without bounds and categories of its own.")
    columns = [str(column.name) for column in schema.columns]
    rows = read_table(path, [*columns, target])
    known = None if target_bounds is not None else _labels(classes, rows[target], text=text)
    if not text:
        _check_types(path, schema, target, known)
    pair = None if target_bounds is None else checked_bounds(target_bounds, "target_bounds")
    train = _examples(rows, schema, target, known, pair)
    data = Data(path, train, train, (schema.width,), 1 if known is None else len(known), target_bounds=pair)
    if test_file is None:
        held_out = round(test_fraction * len(rows))
        if not 0 < held_out < len(rows):
            raise ValueError(
                f"Expected test_fraction={test_fraction!r} to leave rows for training and for testing, but "
                f"{held_out} of {len(rows)} would be test rows."
            )
        data = replace(data.with_validation(test_fraction), name=path)
    else:
        if Path(test_file).suffix != Path(path).suffix:
            raise ValueError(f"Expected test_file={test_file!r} of the same kind as {path!r}.")
        tested = read_table(test_file, [*columns, target])
        if not text:
            _check_types(test_file, schema, target, known)
        data = replace(data, test=_examples(tested, schema, target, known, pair))
    return data.with_known_test_labels()


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
            "Expected bounds or categories of at least one column: nothing is read off the data."
        )
    return Schema(tuple(columns))


def _texts(values: Sequence[Any], *, text: bool) -> tuple[Any, ...]:
    if isinstance(values, str):
        raise TypeError(f"Expected a list of values, got the text {values!r}.")
    # Values of CSV are read without spaces around them.
    return tuple(str(value).strip() for value in values) if text else tuple(values)


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


def _check_types(path: str, schema: Schema, target: str, classes: tuple[Any, ...] | None) -> None:
    """Raises if the type of a Parquet column shows that no value can be what the schema says.

    The types that pandas would give to the columns depend on their values.
    """
    from pyarrow import types

    stored = _stored(path)
    if classes is not None:
        _check_kind(classes, f"classes={list(classes)!r}", target, stored.field(target).type, "label")
    for column in schema.columns:
        name, kind = str(column.name), stored.field(str(column.name)).type
        if isinstance(column, Category):
            _check_kind(column.values, f"categories {list(column.values)!r}", name, kind, "category")
        elif types.is_temporal(kind):
            raise TypeError(
                f"Expected {name!r}, which has bounds, to hold numbers, got type {kind}: all values would "
                "count as missing. Store numbers, such as days since a public date, or leave the column out."
            )


def _check_kind(known: tuple[Any, ...], words: str, name: str, stored: Any, what: str) -> None:
    from pyarrow import types

    stored = stored.value_type if types.is_dictionary(stored) else stored
    numbers_stored = types.is_integer(stored) or types.is_floating(stored) or types.is_boolean(stored)
    texts_stored = types.is_string(stored) or types.is_large_string(stored)
    texts = [isinstance(value, str) for value in known]
    if (numbers_stored and all(texts)) or (texts_stored and not any(texts)):
        raise TypeError(
            f"Expected {words} of the type of {name!r}, which is {stored}: no row would have a known {what}. "
            "Give them in a schema, where texts have quotes and numbers have none."
        )


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


def _of_parquet(table: Any, path: Path) -> pd.DataFrame:
    """Converts a table of pyarrow to pandas, whatever its values are."""
    import pyarrow as pa

    for place, field in enumerate(table.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):  # may be no UTF-8
            stored = table.column(place).cast(pa.large_binary()).to_pylist()
            texts = [None if text is None else text.decode(errors="replace") for text in stored]
            table = table.set_column(place, field.name, pa.array(texts, pa.large_string()))
    try:
        # pandas would make floats of all whole numbers in a column if one of them was missing.
        return table.to_pandas(integer_object_nulls=True)
    except (ValueError, pa.ArrowException):  # names the value
        raise ValueError(f"Expected columns of {path} with values that pandas can hold.") from None


def _stored(path: str | Path) -> Any:
    """Returns names and types of the columns of a Parquet file."""
    parquet = _parquet()
    try:
        return parquet.read_schema(path)
    except ValueError:  # of pyarrow
        raise ValueError(f"Expected {path} to be a Parquet file. Write it again.") from None


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Parquet files need pyarrow, which is not installed. Run: pip install 'adamas[tables]'",
            name=error.name,
        ) from error
    return pyarrow.parquet
