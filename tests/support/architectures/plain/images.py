"""Images and signals: windows, U-Net, diffusion."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.architectures.plain.parts import head, plain
from tests.support.architectures.registry import CLASSES, Built, register
from tests.support.through import Through


def windows(m: Any, x: Tensor) -> Tensor:
    """Takes overlapping windows of a signal with `Tensor.unfold`."""
    h = torch.relu(m.first(x.unfold(1, 4, 2)))
    return m.head(torch.tanh(m.second(h.flatten(1))))


def windows_parts() -> dict[str, Any]:
    return dict(first=nn.Linear(4, 6), second=nn.Linear(24, 8), head=head())


def image_windows(m: Any, x: Tensor) -> Tensor:
    """Takes patches of an image with `F.unfold`, and joins them with `F.fold`."""
    h = F.unfold(x, 3, padding=1).transpose(1, 2)
    h = torch.relu(m.first(h)).transpose(1, 2)
    return m.head(F.fold(h, x.shape[-2:], 1).mean((2, 3)))


def u_net(m: Any, x: Tensor) -> Tensor:
    """Joins a downsampled and upsampled path with a skip connection."""
    a = F.silu(m.norm(m.first(x)))
    b = F.silu(m.down(a))
    c = F.interpolate(b, scale_factor=2, mode="nearest")
    return m.last(torch.cat([a, m.up(c)], 1)).mean((2, 3))


def unet_parts() -> dict[str, Any]:
    return dict(
        first=nn.Conv2d(3, 8, 3, padding=1),
        norm=nn.GroupNorm(2, 8),
        down=nn.Conv2d(8, 8, 3, 2, 1),
        up=nn.ConvTranspose2d(8, 8, 3, padding=1),
        last=nn.Conv2d(16, CLASSES, 1),
    )


def diffusion(n: int) -> Built:
    """Makes a denoiser. The batch has the noise, and a time per example that picks its scale."""
    model = Through(
        _denoise, conv=nn.Conv2d(3, 8, 3, padding=1), time=nn.Linear(4, 8), out=nn.Conv2d(8, 3, 1)
    )
    table = torch.linspace(0.1, 0.9, 10, dtype=torch.float64)

    def loss(model: Any, batch: tuple[Tensor, ...]) -> Tensor:
        x, noise, time = batch
        a = table.to(x.dtype)[time].view(-1, 1, 1, 1)
        return (model(a * x + (1 - a) * noise, time) - noise).square().mean((1, 2, 3))

    return model, loss, (torch.randn(n, 3, 6, 6), torch.randn(n, 3, 6, 6), torch.randint(10, (n,)))


def _denoise(m: Any, x: Tensor, time: Tensor) -> Tensor:
    angles = time.to(x.dtype).unsqueeze(1) * torch.tensor([1.0, 0.1], dtype=x.dtype)
    embedded = m.time(torch.cat([angles.sin(), angles.cos()], 1))
    return m.out(F.silu(m.conv(x) + embedded[:, :, None, None]))


def image(n: int) -> Tensor:
    return torch.randn(n, 3, 6, 6)


def register_images() -> None:
    """Adds models of images and signals."""
    register("windows of a signal", plain(windows, windows_parts, lambda n: torch.randn(n, 10)))
    register(
        "windows of an image",
        plain(image_windows, lambda: dict(first=nn.Linear(27, 8), head=head()), image),
    )
    register("U-Net", plain(u_net, unet_parts, image))
    register("diffusion", diffusion)
