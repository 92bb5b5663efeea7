"""Convolutions."""

import copy

import torch
from torch import Tensor, nn

from tests.support.models_by_hand.parts import B, Build
from tests.support.through import Through


def conv(layer: nn.Module, *size: int) -> Build:
    """Puts a linear layer behind a copy of a convolution."""

    def build() -> tuple[nn.Module, Tensor]:
        own, x = copy.deepcopy(layer), torch.randn(B, *size)
        width = own(x[:1]).numel()
        return nn.Sequential(own, nn.Tanh(), nn.Flatten(), nn.Linear(width, 3)), x

    return build


CASES: dict[str, Build] = {
    "conv2d padding": conv(nn.Conv2d(4, 6, 3, padding=1), 4, 6, 6),
    "conv2d stride": conv(nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), 4, 6, 6),
    "conv2d stride that leaves a rest": conv(nn.Conv2d(2, 3, 3, stride=3), 2, 7, 8),
    "conv2d dilation": conv(nn.Conv2d(4, 6, 3, dilation=2, padding=2), 4, 6, 6),
    "conv2d groups": conv(nn.Conv2d(4, 6, 3, groups=2, padding=1), 4, 6, 6),
    "conv2d depthwise": conv(nn.Conv2d(4, 8, 3, groups=4), 4, 5, 5),
    "conv2d same, odd": conv(nn.Conv2d(4, 6, 3, padding="same"), 4, 6, 6),
    "conv2d same, even": conv(nn.Conv2d(4, 6, 4, padding="same"), 4, 6, 6),
    "conv2d same, even and odd": conv(nn.Conv2d(4, 6, (2, 3), dilation=(3, 2), padding="same"), 4, 7, 6),
    "conv2d valid": conv(nn.Conv2d(4, 6, 3, padding="valid"), 4, 6, 6),
    "conv2d reflect": conv(nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), 4, 6, 6),
    "conv2d mixed": conv(nn.Conv2d(4, 6, 3, stride=(2, 1), padding=(0, 2), dilation=(1, 2)), 4, 8, 8),
    "conv2d pixel gram": conv(nn.Conv2d(64, 64, 3, padding=1), 64, 4, 4),
    "conv2d pixel gram, stride": conv(nn.Conv2d(64, 64, 3, stride=2, padding=1), 64, 3, 3),
    "conv2d pixel gram, dilated": conv(nn.Conv2d(96, 96, 3, padding=(2, 1), dilation=(2, 1)), 96, 4, 3),
    "conv2d pixel gram, same and even": conv(nn.Conv2d(64, 64, 2, padding="same"), 64, 3, 3),
    "conv1d": conv(nn.Conv1d(4, 6, 3, stride=2, padding=1), 4, 8),
    "conv1d same, even": conv(nn.Conv1d(4, 6, 2, padding="same", groups=2), 4, 8),
    "conv3d": conv(nn.Conv3d(2, 3, (3, 2, 1), padding=1, stride=(1, 2, 1)), 2, 4, 4, 3),
    "transposed conv2d": conv(nn.ConvTranspose2d(4, 3, 3, stride=2), 4, 4, 4),
    "transposed conv1d groups": conv(nn.ConvTranspose1d(4, 6, 3, groups=2), 4, 5),
    "conv used twice": lambda: (
        Through(
            lambda m, x: m.o(m.c(m.c(x).tanh()).mean((2, 3))),
            c=nn.Conv2d(4, 4, 3, padding=1),
            o=nn.Linear(4, 3),
        ),
        torch.randn(B, 4, 5, 5),
    ),
    "conv used twice, pixel gram": lambda: (
        Through(lambda m, x: m.c(m.c(x).tanh()).mean((2, 3)), c=nn.Conv2d(64, 64, 3, padding=1)),
        torch.randn(B, 64, 3, 3),
    ),
    "conv channels last": lambda: (
        nn.Sequential(nn.Conv2d(4, 6, 3), nn.Tanh()).to(memory_format=torch.channels_last),
        torch.randn(B, 4, 6, 6).to(memory_format=torch.channels_last),
    ),
}
