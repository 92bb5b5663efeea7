"""Refuses data sets that cannot be sampled example by example, each with its remedy."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, WeightedRandomSampler

_TABLES = ("pandas", "polars")
_ARRAYS = 4  # a list of that many arrays of one length is taken for columns, not for examples


def check_dataset(dataset: object) -> None:
    """Raises for a stream, a loader, a sampler, a collection of data sets, and columns without rows."""
    datasets = sys.modules.get("datasets")  # nothing is one of its data sets before it is imported
    streams = IterableDataset if datasets is None else (IterableDataset, datasets.IterableDataset)
    if isinstance(dataset, streams):
        raise TypeError(
            "Expected a map-style data set, got an IterableDataset: a stream cannot be sampled at random, "
            "so a record's sampling probability is unknown. Load it into a data set with "
            "__getitem__ and __len__; for Hugging Face's, use load_dataset without streaming=True."
        )
    if isinstance(dataset, DataLoader):
        raise TypeError(
            "Expected a data set, got a DataLoader: its batches were not drawn by a sampler that the "
            "accountant knows. Pass loader.dataset, with batch_size and, if needed, collate_fn."
            + advice_on_weights(dataset.sampler, getattr(dataset.batch_sampler, "sampler", None))
        )
    if isinstance(dataset, Sampler):
        raise TypeError(
            f"Expected a data set, got the sampler {type(dataset).__name__}. Pass the data set itself, and "
            "name the way to draw batches: sampling='poisson'." + advice_on_weights(dataset)
        )
    if isinstance(dataset, Mapping) and 0 not in dataset:
        raise TypeError(_mapping(dataset))
    if isinstance(dataset, str | bytes):
        raise TypeError("Expected a data set, got a string. Load the file, and pass a data set of its rows.")
    if type(dataset).__module__.partition(".")[0] in _TABLES:
        raise TypeError(
            f"Expected a data set, got a {type(dataset).__name__}, which is read by columns. Pass "
            "torch.utils.data.TensorDataset(x, y) with x = torch.tensor(table[features].to_numpy(), "
            "dtype=torch.float32), and y likewise; or use an estimator of adamas.tabular, which fits tables."
        )
    if type(dataset).__module__.startswith("scipy.sparse"):
        raise TypeError(
            f"Expected a data set, got a {type(dataset).__name__}. Pass torch.utils.data.TensorDataset(x, y) "
            "with x = torch.tensor(matrix.toarray(), dtype=torch.float32), and y likewise."
        )
    if isinstance(dataset, list | tuple) and dataset and all(_is_dataset(part) for part in dataset):
        raise TypeError(
            f"Expected one data set, got a {type(dataset).__name__} of {len(dataset)}. Pass one of them, or "
            "join them by torch.utils.data.ConcatDataset."
        )
    if _are_columns(dataset):
        raise TypeError(
            f"Expected a data set of examples, got a {type(dataset).__name__} of arrays of one length, each "
            "with a part of every example. Pass torch.utils.data.TensorDataset(X, y), with tensors: X = "
            "torch.tensor(X.to_numpy(), dtype=torch.float32) for a DataFrame."
        )


def advice_on_weights(*samplers: object) -> str:
    """Returns the remedy for a sampler that has weights; nothing for other samplers."""
    if not any(isinstance(sampler, WeightedRandomSampler) for sampler in samplers):
        return ""
    return (
        " Its WeightedRandomSampler cannot be accounted for: the accounting needs one sampling probability "
        "for all examples. Instead, weigh the classes in the loss, loss * weights[labels], with weights that "
        "do not depend on the data."
    )


def _mapping(dataset: Mapping[Any, Any]) -> str:
    names = [repr(name) for name in list(dataset)[:5]]
    if all(
        hasattr(part, "__getitem__") and not isinstance(part, Tensor | np.ndarray | list)
        for part in dataset.values()
    ):
        first = "'train'" if "train" in dataset else next(iter(names), "name")
        return (
            f"Expected one data set, got a {type(dataset).__name__} of {', '.join(names)}. Pass one of them: "
            f"data[{first}]."
        )
    return (
        f"Expected a data set of examples, got a {type(dataset).__name__} of {', '.join(names)}, each with a "
        "part of every example. Pass torch.utils.data.TensorDataset(X, y), or Hugging Face's "
        'datasets.Dataset.from_dict(columns).with_format("torch").'
    )


def _is_dataset(value: object) -> bool:
    datasets = sys.modules.get("datasets")
    return isinstance(value, Dataset if datasets is None else (Dataset, datasets.Dataset))


def _are_columns(dataset: object) -> bool:
    """Tells whether a short list or tuple holds columns, such as (X, y)."""
    if type(dataset) not in (list, tuple) or not 2 <= len(dataset) <= _ARRAYS:  # type: ignore[arg-type]
        return False
    parts: Any = dataset
    if isinstance(parts, tuple) and all(map(_is_column, parts)):
        return len({_rows(part) for part in parts}) == 1
    if not all(isinstance(part, Tensor | np.ndarray) and part.ndim for part in parts):
        return False
    same = len({tuple(part.shape[1:]) for part in parts}) == 1
    return len({len(part) for part in parts}) == 1 and not same


def _is_column(part: Any) -> bool:
    """Tells whether a value can be a column: an array, a list, or one of pandas, polars or scipy."""
    if isinstance(part, Tensor | np.ndarray):
        return part.ndim > 0
    kind = type(part).__module__
    return isinstance(part, list) or kind.partition(".")[0] in _TABLES or kind.startswith("scipy.sparse")


def _rows(column: Any) -> int:
    shape = getattr(column, "shape", None)
    return int(shape[0] if shape else len(column))
