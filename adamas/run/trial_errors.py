"""Names the remedy where a few examples cannot be joined, or where model and loss do not take them."""

import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

from adamas._nests import named_tensors
from adamas.errors import UnsupportedError
from adamas.loading import Loader

_OF_TYPES = re.compile(r"\bdtypes?\b|scalar type|result type")
_OF_LISTS = re.compile(r"must be Tensor, not (list|tuple)")
_NOT_TAKEN = re.compile(r"unexpected keyword argument '(\w+)'")


@contextmanager
def joining(loader: Loader) -> Iterator[None]:
    """Names the remedy where examples cannot be joined: texts, and lengths that differ."""
    try:
        yield
    except UnsupportedError:
        raise
    except (TypeError, ValueError, LookupError, RuntimeError, AttributeError) as error:
        if _fails_in_default_collate(error):
            raise TypeError(
                f"Expected examples that torch's default_collate can join, but it fails "
                f"({type(error).__name__}). Make all examples tensors of one shape, or pass a collate_fn "
                "that pads texts of different lengths, such as transformers' DataCollatorWithPadding."
            ) from error
        texts = [] if loader.collate_fn is None else _texts(loader.dataset[0])
        if texts:
            raise TypeError(
                f"Expected examples that collate_fn can join, but it fails ({type(error).__name__}), and the "
                f"data set has columns of text. Remove them after tokenizing, or if they are not needed: "
                f"dataset.remove_columns({texts!r})."
            ) from error
        raise


@contextmanager
def computing(model: nn.Module, sample: Any) -> Iterator[None]:
    """Names the remedy where the model does not take the batch: wrong number types, surplus columns."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not _OF_TYPES.search(text) or (_types_agree(model, sample) and "Long" not in text):
            raise
        raise TypeError(_of_types(model, sample)) from error
    except TypeError as error:
        if _OF_LISTS.search(str(error)):
            raise TypeError(
                "Expected tensors in the batch, got a list of tensors: torch's default_collate joins "
                "examples that are lists place by place. Let the data set return each list as a tensor; "
                "for Hugging Face's, use dataset.with_format('torch')."
            ) from error
        surplus = _NOT_TAKEN.search(str(error))
        if surplus is None or not isinstance(sample, Mapping) or surplus[1] not in sample:
            raise
        raise TypeError(
            f"The model takes no {surplus[1]!r}, which is in the batch. Remove the column: "
            f"dataset.remove_columns([{surplus[1]!r}])."
        ) from error


def _fails_in_default_collate(error: BaseException) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__") == default_collate.__module__ for frame, _ in frames)


def _texts(example: Any) -> list[str]:
    if not isinstance(example, Mapping):
        return []
    return [str(key) for key, value in example.items() if isinstance(value, str)]


def _types_agree(model: nn.Module, sample: Any) -> bool:
    """Tells whether a model and a batch have numbers of one type."""
    kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return kinds | {x.dtype for _, x in named_tensors(sample)} == kinds and len(kinds) == 1


def _of_types(model: nn.Module, sample: Any) -> str:
    kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
    own = ", ".join(sorted(map(str, kinds)))
    given = ", ".join(f"{name} of {x.dtype}" for name, x in named_tensors(sample))
    measured = next((kind for kind in kinds if len(kinds) == 1), torch.float32)
    return (
        f"Expected numbers of the types that the model takes. It has parameters of {own}; the batch has "
        f"{given}. Convert in the data set: measurements as in TensorDataset(x.to({measured}), y), "
        f"indices of classes to torch.int64, and the targets of other losses to {measured}."
    )
