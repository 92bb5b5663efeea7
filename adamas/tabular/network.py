"""The models of the estimators, and the losses of their rows."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adamas import _validate
from adamas._streams import Seed, torch_randomness


def network(inputs: int, hidden: Sequence[int], outputs: int, seed: int | None) -> nn.Sequential:
    """Makes a linear model, or one with hidden ReLU layers. Its initial weights are public.

    Args:
        inputs: Inputs of the model.
        hidden: Units of each hidden layer.
        outputs: Outputs of the model.
        seed: Of the run; None draws initial weights from a secret one.
    """
    for place, units in enumerate(hidden):
        _validate.count(**{f"hidden_layer_sizes[{place}]": units})
    with torch_randomness(int(Seed(seed).words("initial weights", count=1)[0])):
        layers: list[nn.Module] = []
        for before, after in pairwise([inputs, *hidden]):
            layers += [nn.Linear(before, after, dtype=torch.float32), nn.ReLU()]
        last = nn.Linear(hidden[-1] if hidden else inputs, outputs, dtype=torch.float32)
    if not hidden:  # the middle of a convex problem
        nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*layers, last)


def binary_loss(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """Computes the weighted logistic loss of each row, for labels 0 and 1."""
    x, y, weight = batch
    return F.binary_cross_entropy_with_logits(model(x)[:, 0], y, reduction="none") * weight


def classes_loss(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """Computes the weighted cross-entropy of each row, for several classes."""
    x, y, weight = batch
    return F.cross_entropy(model(x), y, reduction="none") * weight


def squared_loss(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """Computes the weighted squared error of each row."""
    x, y, weight = batch
    errors: Tensor = model(x)[:, 0] - y
    return errors.square() * weight
