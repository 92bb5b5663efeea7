"""Fully connected classifiers."""

import math

from torch import nn


def mlp(input_shape: tuple[int, ...], classes: int, hidden: int = 1000) -> nn.Module:
    """One hidden layer with ReLU: on MNIST the 784-1000-10 network of the DP-MacAdam paper.

    Example:
        >>> sum(p.numel() for p in mlp((1, 28, 28), 10).parameters())
        795010
    """
    inputs = math.prod(input_shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def linear(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes))
