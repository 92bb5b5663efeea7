"""Fully connected classifiers.

References:
    Naima Tasnim, Lalitha Sankar, Oliver Kosut. "DP-MacAdam: Differentially Private Mechanism with Adaptive
    Clipping and Adaptive Momentum." 2026. arXiv:2606.05435.
"""

from torch import nn

from adamas import _validate
from adamas.models import _shapes


def mlp(input_shape: tuple[int, ...], classes: int, hidden: int = 1000) -> nn.Module:
    """Builds one hidden layer with ReLU: on MNIST, the 784-1000-10 network of the DP-MacAdam paper.

    Args:
        input_shape: Shape of one example, which is flattened.
        classes: Number of classes.
        hidden: Units in the hidden layer.

    Example:
        >>> sum(p.numel() for p in mlp((1, 28, 28), 10).parameters())
        795010
    """
    inputs = _shapes.flat(input_shape, classes)
    _validate.count(hidden=hidden)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def linear(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Builds multinomial logistic regression.

    Args:
        input_shape: Shape of one example, which is flattened.
        classes: Number of classes.
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(_shapes.flat(input_shape, classes), classes))
