"""Residual networks for small images, with GroupNorm instead of BatchNorm.

References:
    Kaiming He, Xiangyu Zhang, Shaoqing Ren, Jian Sun. "Deep Residual Learning for Image Recognition." CVPR
    2016. arXiv:1512.03385.

    Yuxin Wu, Kaiming He. "Group Normalization." ECCV 2018. arXiv:1803.08494.

    Jin Liu, Yinbin Miao, Ning Xi, Junkang Liu. "DP-FedAdamW: An Efficient Optimizer for Differentially
    Private Federated Large Models." CVPR 2026. arXiv:2602.19945.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from adamas.models import _shapes


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, each with GroupNorm; ReLU between them and after the sum with the input.

    Args:
        before: Channels of the input.
        after: Channels of the output.
        stride: Stride of the first convolution.
        groups: Groups of each GroupNorm.
    """

    def __init__(self, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, after)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.short = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(groups, after)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Returns the sum of both branches."""
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + self.short(x))


class ResNet(nn.Module):
    """See `resnet18_gn` and `resnet8_gn`, which check the arguments."""

    def __init__(self, channels: int, classes: int, widths: Sequence[int], blocks: int, groups: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(groups, widths[0])
        body, now = [], widths[0]
        for stage, after in enumerate(widths):
            for i in range(blocks):
                body.append(BasicBlock(now, after, 2 if stage and not i else 1, groups))
                now = after
        self.blocks = nn.Sequential(*body)
        self.classifier = nn.Linear(now, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logits of images `(n, channels, height, width)`."""
        h = self.blocks(F.relu(self.norm(self.conv(x))))
        logits: Tensor = self.classifier(h.mean((2, 3)))
        return logits


def resnet18_gn(input_shape: tuple[int, ...], classes: int, *, groups: int = 2) -> nn.Module:
    """Builds ResNet-18 with GroupNorm of 2 groups, as DP-FedAdamW uses it.

    For small images: it starts with a 3x3 convolution of stride 1, without pooling, and has four stages of
    two blocks with 64, 128, 256 and 512 channels. Convolutions are initialised as in torchvision.

    Args:
        input_shape: `(channels, height, width)`, from 8x8 pixels.
        classes: Number of classes.
        groups: Groups of each GroupNorm: a divisor of 64.

    Example:
        >>> sum(p.numel() for p in resnet18_gn((3, 32, 32), 10).parameters())
        11173962
    """
    channels, _, _ = _shapes.image("resnet18-gn", input_shape, classes, smallest=8)
    _shapes.divides(groups, 64)
    return ResNet(channels, classes, (64, 128, 256, 512), 2, groups)


def resnet8_gn(input_shape: tuple[int, ...], classes: int, *, width: int = 16, groups: int = 2) -> nn.Module:
    """Builds ResNet-8 with GroupNorm, for small machines: `resnet18_gn` with three stages of one block.

    Args:
        input_shape: `(channels, height, width)`, from 4x4 pixels.
        classes: Number of classes.
        width: Channels of the first stage; the others have twice and four times as many.
        groups: Groups of each GroupNorm: a divisor of the width.

    Example:
        >>> sum(p.numel() for p in resnet8_gn((3, 32, 32), 10).parameters())
        78042
    """
    channels, _, _ = _shapes.image("resnet8-gn", input_shape, classes, smallest=4)
    _shapes.divides(groups, width)
    return ResNet(channels, classes, (width, 2 * width, 4 * width), 1, groups)
