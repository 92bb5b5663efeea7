"""Refuses data sets that cannot be sampled example by example, each with its remedy."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Sampler, WeightedRandomSampler

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
            + _weights(dataset)
        )
    if isinstance(dataset, Sampler):
        raise TypeError(
            f"Expected a data set, got the sampler {type(dataset).__name__}. Pass the data set itself, and "
            "name the way to draw batches: sampling='poisson'."
        )
    if isinstance(dataset, Mapping) and 0 not in dataset:
        raise TypeError(_mapping(dataset))
    if isinstance(dataset, str | bytes):
        raise TypeError("Expected a data set, got a string. Load the file, and pass a data set of its rows.")
    if type(dataset).__module__.partition(".")[0] in ("pandas", "polars"):
        raise TypeError(
            f"Expected a data set, got a {type(dataset).__name__}, which is read by columns. Pass "
            "torch.utils.data.TensorDataset(x, y) with x = torch.tensor(table[features].to_numpy(), "
            "dtype=torch.float32), and y likewise."
        )
    if type(dataset).__module__.startswith("scipy.sparse"):
        raise TypeError(
            f"Expected a data set, got a {type(dataset).__name__}. Pass torch.utils.data.TensorDataset(x, y) "
            "with x = torch.tensor(matrix.toarray(), dtype=torch.float32), and y likewise."
        )
    if _are_columns(dataset):
        raise TypeError(
            f"Expected a data set of examples, got a {type(dataset).__name__} of arrays of one length, each "
            "with a part of every example. Pass torch.utils.data.TensorDataset(X, y), with tensors."
        )


def _weights(loader: DataLoader[Any]) -> str:
    """Returns the remedy for a loader whose sampler has weights; nothing for others."""
    samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    if not any(isinstance(sampler, WeightedRandomSampler) for sampler in samplers):
        return ""
    return (
        " Its WeightedRandomSampler cannot be accounted for: the accounting needs one sampling probability "
        "for all examples. Weight the classes in the loss instead, loss * weights[labels], with weights that "
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


def _are_columns(dataset: object) -> bool:
    """Tells whether a short list or tuple holds columns, such as (X, y)."""
    if type(dataset) not in (list, tuple) or not 2 <= len(dataset) <= _ARRAYS:  # type: ignore[arg-type]
        return False
    parts: Any = dataset
    if not all(isinstance(part, Tensor | np.ndarray) and part.ndim for part in parts):
        return False
    same = len({tuple(part.shape[1:]) for part in parts}) == 1
    return len({len(part) for part in parts}) == 1 and (isinstance(parts, tuple) or not same)
