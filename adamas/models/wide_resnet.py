"""The wide residual network of De et al. (2022), with standardised weights.

References:
    Soham De, Leonard Berrada, Jamie Hayes, Samuel L. Smith, Borja Balle. "Unlocking High-Accuracy
    Differentially Private Image Classification through Scale." 2022. arXiv:2204.13650.

    Sergey Zagoruyko, Nikos Komodakis. "Wide Residual Networks." BMVC 2016. arXiv:1605.07146.

    Siyuan Qiao, Huiyu Wang, Chenxi Liu, Wei Shen, Alan Yuille. "Micro-Batch Training with Batch-Channel
    Normalization and Weight Standardization." 2019. arXiv:1903.10520.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adamas import _validate
from adamas.models import _shapes


class StandardizedConv2d(nn.Module):
    r"""A convolution with standardised weights, and a gain and a bias for each channel.

    The :math:`n` weights :math:`w` of a channel have mean 0 and length 1 before the gain :math:`g`:

    .. math:: y = g \frac{w - \bar w}{\sqrt{\max(n\,\mathrm{var}(w),\ 10^{-4})}} * x + b

    The gain multiplies the output of the convolution, not its weights, which gives the same result. So the
    weights that meet data depend on one parameter only, for which the fast engine has a closed form.

    Args:
        before: Channels of the input.
        after: Channels of the output.
        size: Height and width of the kernels, an odd number; the padding is size // 2.
        stride: Stride.
    """

    def __init__(self, before: int, after: int, size: int, stride: int = 1) -> None:
        super().__init__()
        self.stride, self.padding = stride, size // 2
        self.weight = nn.Parameter(torch.empty(after, before, size, size))
        self.gain = nn.Parameter(torch.ones(after, 1, 1))
        self.bias = nn.Parameter(torch.zeros(after, 1, 1))
        nn.init.normal_(self.weight, std=1 / math.sqrt(before * size * size))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the output channels of images `(n, before, height, width)`."""
        variance, mean = torch.var_mean(self.weight, (1, 2, 3), correction=0, keepdim=True)
        length = (variance * self.weight[0].numel()).clamp(min=1e-4)
        weight = (self.weight - mean) * torch.rsqrt(length)
        return F.conv2d(x, weight, stride=self.stride, padding=self.padding) * self.gain + self.bias


class WideBlock(nn.Module):
    """ReLU, GroupNorm, convolution, twice, added to the input.

    Args:
        before: Channels of the input.
        after: Channels of the output.
        stride: Stride of the first convolution.
        groups: Groups of each GroupNorm.
        first: Whether it starts a stage. If so, the shortcut has ReLU, GroupNorm and a 1x1 convolution.
    """

    def __init__(self, before: int, after: int, stride: int, groups: int, first: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(groups, before), nn.GroupNorm(groups, after)
        self.conv1 = StandardizedConv2d(before, after, 3, stride)
        self.conv2 = StandardizedConv2d(after, after, 3)
        self.short_norm = nn.GroupNorm(groups, before) if first else None
        self.short = StandardizedConv2d(before, after, 1, stride) if first else None

    def forward(self, x: Tensor) -> Tensor:
        """Returns the sum of both branches."""
        h = F.relu(x)
        if self.short_norm is not None and self.short is not None:
            x = self.short(self.short_norm(h))
        y: Tensor = self.conv2(self.norm2(F.relu(self.conv1(self.norm1(h))))) + x
        return y


class WideResNet(nn.Module):
    """See `wide_resnet`, which checks the arguments."""

    def __init__(self, channels: int, classes: int, depth: int, width: int, groups: int) -> None:
        super().__init__()
        self.stem = StandardizedConv2d(channels, 16, 3)
        blocks, now = [], 16
        for stage in range(3):
            for i in range((depth - 4) // 6):
                before, now = now, 16 * width << stage
                stride = 2 if stage and not i else 1
                blocks.append(WideBlock(before, now, stride, groups, first=not i))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.GroupNorm(groups, now)
        self.classifier = nn.Linear(now, classes)
        nn.init.normal_(self.classifier.weight, std=1 / math.sqrt(now))
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logits of images `(n, channels, height, width)`."""
        h = self.norm(F.relu(self.blocks(self.stem(x))))
        logits: Tensor = self.classifier(h.mean((2, 3)))
        return logits


def wide_resnet(
    input_shape: tuple[int, ...], classes: int, *, depth: int = 16, width: int = 4, groups: int = 16
) -> nn.Module:
    """Builds WRN-16-4 with GroupNorm and weight standardisation (De et al., 2022).

    It has a 3x3 convolution to 16 channels; three stages of two blocks, with 64, 128 and 256 channels, of
    which the second and the third halve the size; the mean over all places; and the classifier. In each block
    ReLU comes before the normalisation, as in the authors' code. Weights are drawn from N(0, 1/fan_in); gains
    are 1 and biases 0.

    Differs from the authors' code: strided convolutions pad one pixel on each side, and the classifier's
    weights are drawn from a normal distribution that is not truncated.

    Args:
        input_shape: `(channels, height, width)`, from 4x4 pixels.
        classes: Number of classes.
        depth: Number of layers, 6k + 4 for k blocks in each stage.
        width: Factor of the channels of all stages.
        groups: Groups of each GroupNorm: a divisor of 16.

    Example:
        >>> sum(p.numel() for p in wide_resnet((3, 32, 32), 10).parameters())
        2753818
    """
    channels, _, _ = _shapes.image("wrn-16-4", input_shape, classes, smallest=4)
    _validate.count(depth=depth, width=width)
    if depth < 10 or depth % 6 != 4:
        raise ValueError(f"Expected depth={depth} to be 6k + 4, such as 10, 16, 22, 28 or 40.")
    _shapes.divides(groups, 16)
    return WideResNet(channels, classes, depth, width, groups)
