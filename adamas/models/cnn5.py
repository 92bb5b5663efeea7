"""The convolutional network of the DP-AdamBC paper's code.

References:
    Qiaoyue Tang, Frederick Shpilevskiy, Mathias Lécuyer. "DP-AdamBC: Your DP-Adam Is Actually DP-SGD (Unless
    You Apply Bias Correction)." AAAI 2024. arXiv:2312.14334.
"""

import math

from torch import nn

from adamas import _validate
from adamas.models import _shapes


def cnn5(input_shape: tuple[int, ...], classes: int, *, initialization: str = "published") -> nn.Module:
    """Builds CNN5 of DP-AdamBC's code, which DP-AdamW also uses: five convolutions with tanh.

    It has 3x3 convolutions with bias, to 32, 64, 128, 256 channels and the number of classes; tanh after the
    first four, and 2x2 max-pooling after the first three. The first has no padding, the others keep the size:
    32 pixels become 30, 15, 7 and 3. The logits are the channel means of the last convolution. There is no
    normalisation.

    Args:
        input_shape: `(channels, height, width)`, from 10x10 pixels.
        classes: Number of classes.
        initialization: "published" draws weights as the paper's code does, from N(0, 1/fan_in) truncated at
            two standard deviations, with biases of 0; "torch" draws them as `nn.Conv2d` does, 1.5 times
            smaller.

    Example:
        >>> sum(p.numel() for p in cnn5((3, 32, 32), 10).parameters())
        411466
    """
    channels, _, _ = _shapes.image("cnn5", input_shape, classes, smallest=10)
    _validate.one_of(["published", "torch"], initialization=initialization)
    # tanh gives the same before and after the pooling, but after it on a quarter of the values.
    model = nn.Sequential(
        *(nn.Conv2d(channels, 32, 3), nn.MaxPool2d(2), nn.Tanh()),
        *(nn.Conv2d(32, 64, 3, padding="same"), nn.MaxPool2d(2), nn.Tanh()),
        *(nn.Conv2d(64, 128, 3, padding="same"), nn.MaxPool2d(2), nn.Tanh()),
        *(nn.Conv2d(128, 256, 3, padding="same"), nn.Tanh()),
        *(nn.Conv2d(256, classes, 3, padding="same"), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )
    if initialization == "published":
        for layer in model:
            if isinstance(layer, nn.Conv2d):
                deviation = 1 / math.sqrt(layer.weight[0].numel())
                nn.init.trunc_normal_(layer.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)
    return model
