"""Replaces losses that average over the batch by one loss per example.

Let n examples have k elements each. Torch's mean over all n k elements is the mean over the examples of each
example's own mean, so that the loss of an example is known exactly. A mean with class weights divides by
the batch's total weight and has no such form. Labels that are ignored do not count: the loss of an example
is the mean over its own other labels.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from adamas.engines.bookkeeping.counts import user_line
from adamas.errors import UnsupportedError

Function = Callable[..., Tensor]

_OVER_LABELS: tuple[Function, ...] = (F.cross_entropy, F.nll_loss)
_OVER_ELEMENTS: tuple[Function, ...] = (
    *(F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss),
    *(F.binary_cross_entropy, F.binary_cross_entropy_with_logits, F.kl_div),
    *(F.poisson_nll_loss, F.gaussian_nll_loss, F.soft_margin_loss, F.hinge_embedding_loss),
    *(F.multi_margin_loss, F.multilabel_margin_loss, F.multilabel_soft_margin_loss),
    *(F.margin_ranking_loss, F.cosine_embedding_loss, F.triplet_margin_loss),
    F.triplet_margin_with_distance_loss,
)
_REFUSED: tuple[Function, ...] = (F.ctc_loss,)


def mean_of_each(first: Tensor, values: Tensor) -> Tensor:
    """Averages over all axes of each example, of which `first` has one per row.

    Example:
        >>> import torch
        >>> mean_of_each(torch.zeros(2, 7), torch.tensor([[1.0, 2.0], [3.0, 5.0]])).tolist()
        [1.5, 4.0]
    """
    return _rows(first, values).mean(1)


def sum_of_each(first: Tensor, values: Tensor) -> Tensor:
    """Sums over all axes of each example, of which `first` has one per row."""
    return _rows(first, values).sum(1)


def _rows(first: Tensor, values: Tensor) -> Tensor:
    """Returns the elements of each example as a row."""
    try:
        return values.reshape(first.shape[0], -1)
    except RuntimeError as error:
        raise UnsupportedError(
            "Expected a loss with the same number of elements for each example, got one that is averaged, "
            "chosen or cut over the batch. Give each example a loss, and those that do not count a weight "
            "of 0."
        ) from error


@dataclass(frozen=True)
class Form:
    """A loss function as one loss per example.

    Attributes:
        each: Takes a tensor with one row per example, and the arguments of the loss function.
        reduction: "mean" or "sum": how the losses of the examples make up the loss.
    """

    each: Callable[..., Tensor]
    reduction: str


def of(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Form | None:
    """Returns the form of a call of a loss function; None for another function, or without reduction.

    Raises:
        UnsupportedError: If the loss function has no such form.
    """
    if function not in (*_OVER_LABELS, *_OVER_ELEMENTS, *_REFUSED):
        return None
    name = function.__name__
    given = _arguments(function, args, kwargs)
    for old in ("size_average", "reduce"):
        if given.get(old) is not None:
            raise UnsupportedError(
                f"Expected {name} without {old}={given[old]!r} ({user_line()}), which torch has replaced. "
                "Give reduction= instead."
            )
    reduction = given["reduction"]
    if reduction == "none":
        return None
    if function in _REFUSED:
        raise UnsupportedError(
            f"Expected {name} with reduction='none' ({user_line()}), got {reduction!r}, which this module "
            "cannot take apart. Make it one loss per example, and take their mean."
        )
    if reduction not in ("mean", "sum") and (function is not F.kl_div or reduction != "batchmean"):
        raise ValueError(f"Expected {name} with a reduction of torch ({user_line()}), got {reduction!r}.")
    if function in _OVER_LABELS and reduction == "mean" and given["weight"] is not None:
        raise UnsupportedError(
            f"Expected {name} without weight= ({user_line()}): its mean divides by the total weight of the "
            "batch, which depends on all labels. Compute (weight[y] * losses).mean() of the losses with "
            "reduction='none', which divides by the number of examples."
        )
    return Form(_Each(function, reduction), "sum" if reduction == "sum" else "mean")


@dataclass(frozen=True)
class _Each:
    """A loss function with the losses of the examples as its result."""

    function: Function
    reduction: str

    def __call__(self, first: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        given = _arguments(self.function, args, kwargs)
        losses = self.function(**given | {"reduction": "none"})
        if self.reduction != "mean":  # "batchmean" is the mean over the examples of their sums
            return sum_of_each(first, losses)
        if self.function not in _OVER_LABELS or given["target"].is_floating_point():
            return mean_of_each(first, losses)
        counted = sum_of_each(first, given["target"] != given["ignore_index"])
        return sum_of_each(first, losses) / counted.clamp(min=1)


def _arguments(function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)
