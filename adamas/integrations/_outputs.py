"""Calls a model of `transformers` on a batch, and reads logits and targets."""

import inspect
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def inner_model(model: nn.Module) -> Any:
    """Returns the model inside the adapters of `peft`."""
    peft = sys.modules.get("peft")  # nothing is a PeftModel before it is imported
    return model.get_base_model() if peft is not None and isinstance(model, peft.PeftModel) else model


_TARGETS = ("labels", "start_positions", "end_positions")


def output_of(model: nn.Module, batch: Any, more: Mapping[str, Any]) -> Any:
    """Calls the model without the targets, from which it would compute a loss of the whole batch."""
    _check_mapping(batch)
    inputs = {key: value for key, value in batch.items() if key not in _TARGETS}
    for key, value in inputs.items():
        if isinstance(value, list):
            raise TypeError(
                f"Expected batch[{key!r}] to be a tensor, got a list. Pass a data set of tensors, "
                'dataset.with_format("torch"), or a collator of transformers as collate_fn.'
            )
    if "use_cache" in inspect.signature(inner_model(model).forward).parameters:
        more = {"use_cache": False, **more}  # no token is generated
    return model(**inputs, **more)


def logits_of(model: nn.Module, batch: Any, more: Mapping[str, Tensor] | None = None) -> Tensor:
    output = output_of(model, batch, more or {})
    return wide(output if isinstance(output, Tensor) else output.logits)


def wide(logits: Tensor) -> Tensor:
    """Returns logits in float32 at least, in which losses are computed."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def part_of(batch: Any, name: str) -> Tensor:
    _check_mapping(batch)
    value = batch.get(name)
    if not isinstance(value, Tensor):
        raise ValueError(
            f"Expected batch[{name!r}] to be a tensor with the target of each example, got a batch of "
            f"{sorted(map(str, batch))}. Name the column of the data set {name!r}, and join examples with a "
            "collator of transformers as collate_fn."
        )
    return value


def class_indices(batch: Any, loss: str) -> Tensor:
    labels = part_of(batch, "labels")
    if labels.is_floating_point():
        raise TypeError(
            f"Expected labels that are indices of classes for {loss}, got {labels.dtype}. For several labels "
            "per example set model.config.problem_type = 'multi_label_classification', for numbers "
            "'regression'; or take losses.multi_label or losses.regression."
        )
    return labels.long()


def same_shape(labels: Tensor, logits: Tensor) -> Tensor:
    if labels.shape[1:] != logits.shape[1:]:
        raise ValueError(
            f"Expected labels with the shape of the logits, {tuple(logits.shape[1:])} for each example, got "
            f"{tuple(labels.shape[1:])}."
        )
    return labels


def _check_mapping(batch: Any) -> None:
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"Expected a batch that is a dictionary of tensors, got {type(batch).__name__}. Join examples "
            "with a collator of transformers as collate_fn, or write loss(model, batch) yourself."
        )
