"""The convolutional network of the DP-MacAdam paper.

References:
    Naima Tasnim, Lalitha Sankar, Oliver Kosut. "DP-MacAdam: Differentially Private Mechanism with Adaptive
    Clipping and Adaptive Momentum." 2026. arXiv:2606.05435.
"""

from torch import nn

from adamas import _validate
from adamas.models import _shapes


def cnn(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    groups: int = 16,
    activation: str = "relu",
    pooling: str = "max",
) -> nn.Module:
    """Builds the 5-layer network with 582,346 parameters that DP-MacAdam uses on CIFAR-10.

    It has 3x3 convolutions with bias and size-preserving padding, to 32, 64 and 64 channels, each with an
    affine GroupNorm and an activation; 2x2 pooling after the first and the second; a hidden layer of 128
    units; and the classifier.

    The paper states only the number of parameters. This is the only stack of five such layers, with widths
    that are powers of 2, that has this number. The number does not determine the groups, the activation, the
    pooling and its places, or the order within a layer: these are our choices.

    Args:
        input_shape: `(channels, height, width)`, from 4x4 pixels.
        classes: Number of classes.
        groups: Groups of each GroupNorm: a divisor of 32.
        activation: "relu" or "tanh".
        pooling: "max" or "average".

    Example:
        >>> sum(p.numel() for p in cnn((3, 32, 32), 10).parameters())
        582346
    """
    channels, height, width = _shapes.image("cnn", input_shape, classes, smallest=4)
    _shapes.divides(groups, 32, 64)
    _validate.one_of(["relu", "tanh"], activation=activation)
    _validate.one_of(["max", "average"], pooling=pooling)
    activate = nn.ReLU if activation == "relu" else nn.Tanh

    def convolution(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding="same"), nn.GroupNorm(groups, after)]

    def pooled() -> list[nn.Module]:
        if pooling == "average":
            return [activate(), nn.AvgPool2d(2)]
        return [nn.MaxPool2d(2), activate()]  # the same in either order, but on a quarter of the values

    return nn.Sequential(
        *convolution(channels, 32),
        *pooled(),
        *convolution(32, 64),
        *pooled(),
        *convolution(64, 64),
        activate(),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 128),
        activate(),
        nn.Linear(128, classes),
    )
