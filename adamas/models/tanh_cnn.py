"""The small convolutional network that is commonly used with DP-SGD on MNIST.

References:
    Nicolas Papernot, Abhradeep Thakurta, Shuang Song, Steve Chien, Úlfar Erlingsson. "Tempered Sigmoid
    Activations for Deep Learning with Differential Privacy." AAAI 2021. arXiv:2007.14191.
"""

import torch
from torch import nn

from adamas.models import _shapes


def tanh_cnn(input_shape: tuple[int, ...], classes: int, *, groups: int | None = None) -> nn.Module:
    """Builds two convolutions and two linear layers with tanh: 26,010 parameters on MNIST.

    Few parameters receive less noise in total, and bounded activations keep gradients short (Papernot et al.,
    2021), so it needs a smaller budget than a wide network.

    Args:
        input_shape: `(channels, height, width)`, from 14x14 pixels.
        classes: Number of classes.
        groups: Groups of a GroupNorm after each convolution, a divisor of 16. None has no GroupNorm.

    Example:
        >>> sum(p.numel() for p in tanh_cnn((1, 28, 28), 10).parameters())
        26010
    """
    channels, height, width = _shapes.image("tanh-cnn", input_shape, classes, smallest=14)
    if groups is not None:
        _shapes.divides(groups, 16)

    def normalised(width: int) -> list[nn.Module]:
        return [] if groups is None else [nn.GroupNorm(groups, width)]

    features = nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=3),
        *normalised(16),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        *normalised(32),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
    )
    with torch.no_grad():
        flat = features(torch.zeros(1, channels, height, width)).shape[1]
    return nn.Sequential(*features, nn.Linear(flat, 32), nn.Tanh(), nn.Linear(32, classes))
