"""Joins examples by torch's default_collate, which takes keys and types of a batch from its first example."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from adamas.errors import UnsupportedError

_AS_PYTHON = {np.bool_: bool, np.int64: int, np.float64: float}
"""Numbers of NumPy that default_collate joins as those of Python, also with them."""


def joined(examples: Sequence[Any]) -> Any:
    """Returns the examples as a batch.

    Raises:
        UnsupportedError: If one of them has another form, which would decide how the others are joined, or
            if a function that is not torch's joins them.
    """
    if any(_has(example, kind) for kind in _registered() for example in examples):
        raise UnsupportedError(
            "Expected examples that torch's own functions join, got some of a type with a function in "
            "default_collate_fn_map, which may mix the examples of a batch. Give it as collate_fn=lambda "
            "examples: default_collate(examples), which is compared in every batch."
        )
    batch = default_collate(list(examples))
    if len({_form(example) for example in examples}) > 1:
        raise UnsupportedError(
            "Expected examples of one form, got some with other keys, another order of keys, or other types: "
            "torch's default_collate takes these from the first example of a batch, so that one record would "
            "change how the others are read. Return the same keys in the same order from the data set's "
            "__getitem__, and numbers as tensors of one dtype."
        )
    return batch


def _registered() -> list[Any]:
    """Returns the types for which somebody else than torch has given default_collate a function."""
    return [
        kind
        for kind, function in default_collate_fn_map.items()
        if getattr(function, "__module__", None) != default_collate.__module__
    ]


def _has(example: Any, kind: Any) -> bool:
    """Tells whether an example is of a type, or holds something of it."""
    if isinstance(example, kind):
        return True
    parts = example.values() if isinstance(example, Mapping) else example
    return isinstance(example, Mapping | list | tuple) and any(_has(part, kind) for part in parts)


def _form(example: Any) -> Any:
    """Returns everything of an example that decides how default_collate joins others with it."""
    if isinstance(example, Tensor):
        return example.dtype
    if isinstance(example, Mapping):
        return type(example), tuple((key, _form(value)) for key, value in example.items())
    if isinstance(example, str | bytes):  # not joined at all, also those of NumPy
        return str
    if isinstance(example, Sequence):
        kind = type(example)
        return list if kind is tuple else kind, tuple(map(_form, example))  # both become lists
    if isinstance(example, np.ndarray):
        return np.ndarray, example.dtype
    if isinstance(example, np.generic):
        return _AS_PYTHON.get(type(example), (np.generic, example.dtype))
    return type(example)
