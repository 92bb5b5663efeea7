"""Checks the types of model, rule and loss, before anything is tried."""

import inspect
import warnings
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.loss import _Loss

from adamas.errors import EvaluationModeWarning

_A_LOSS = (
    "It returns one loss per example: def loss(model, batch): x, y = batch; return "
    'torch.nn.functional.cross_entropy(model(x), y, reduction="none"). For a Hugging Face model, use '
    "adamas.integrations.losses.for_model(model)."
)
_OF_TORCH = ("input", "target")


def check_types(model: object, rule: object, loss: object) -> None:
    """Raises unless model, rule and loss have the right types."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"Expected model to be a torch.nn.Module, got {type(model).__name__}.")
    if not isinstance(rule, torch.optim.Optimizer):
        raise TypeError(f"Expected rule to be a torch.optim.Optimizer, got {type(rule).__name__}.")
    if isinstance(rule, torch.optim.LBFGS):
        raise TypeError(
            "Expected a rule that needs one gradient per step, got LBFGS, which asks for several."
        )
    if isinstance(rule, torch.optim.SparseAdam):
        raise TypeError("Expected a rule for dense gradients, got SparseAdam: noise is dense. Take Adam.")
    _check_loss(loss)


def _check_loss(loss: Any) -> None:
    """Raises for a loss that cannot be called as loss(model, batch)."""
    if not callable(loss):
        raise TypeError(f"Expected loss to be a function loss(model, batch), got {loss!r}. {_A_LOSS}")
    try:
        signature = inspect.signature(loss)
    except ValueError:  # some functions of C do not tell
        return
    names = list(signature.parameters)
    of_class = isinstance(loss, type) and issubclass(loss, _Loss)
    if isinstance(loss, _Loss) or of_class or tuple(names[:2]) == _OF_TORCH:
        name = type(loss).__name__ if isinstance(loss, nn.Module) else getattr(loss, "__name__", "a function")
        raise TypeError(
            f"Expected loss to be a function loss(model, batch), got {name}, a loss of outputs and targets. "
            + _A_LOSS
        )
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise TypeError(
            f"Expected loss to be a function loss(model, batch), got one of ({', '.join(names)}). {_A_LOSS}"
        ) from error


def warn_if_evaluating(model: nn.Module, *, stacklevel: int = 4) -> None:
    """Warns about a model whose dropout is off because all of it is in evaluation mode."""
    modules = list(model.modules())
    if any(module.training for module in modules):
        return
    if any(isinstance(module, _DropoutNd) and module.p > 0 for module in modules):
        warnings.warn(
            "The model is in evaluation mode, as from_pretrained returns it, so its dropout is off. Call "
            "model.train() first to train with dropout, or set p=0 to train without.",
            EvaluationModeWarning,
            stacklevel=stacklevel,
        )
