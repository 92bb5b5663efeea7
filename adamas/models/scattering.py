"""A linear classifier on fixed wavelet features, which are not learned and cost no privacy.

The features are the scattering transform of order 2 (Bruna and Mallat, 2013): local averages of the moduli of
an image's wavelet coefficients. At small budgets, classifiers on them are hard to beat (Tramèr and Boneh,
2021).

References:
    Joan Bruna, Stéphane Mallat. "Invariant Scattering Convolution Networks." IEEE Transactions on Pattern
    Analysis and Machine Intelligence, 2013. arXiv:1203.1513.

    Florian Tramèr, Dan Boneh. "Differentially Private Learning Needs Better Features (or Much More Data)."
    ICLR 2021. arXiv:2011.11660.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adamas import _validate
from adamas.models import _shapes
from adamas.models.staged import Staged

_WIDTH = 0.8  # width of the finest wavelet, in pixels
_FREQUENCY = 3 * math.pi / 4  # its center frequency, in radians per pixel


class Scattering(nn.Module):
    """The scattering transform of images.

    With J scales and L angles each channel has 1 + J L + L² J (J - 1) / 2 features at each place: averages,
    over about 2^J pixels, of the channel itself; of the moduli of its coefficients for J L Morlet wavelets;
    and of the moduli of the coefficients of these for coarser wavelets. Places are 2^J pixels apart. Images
    are padded by reflection.

    Args:
        input_shape: `(channels, height, width)`; 2^scales divides height and width.
        scales: J, the number of scales, each twice as coarse as the one before.
        angles: L, the number of directions of the wavelets.

    Example:
        >>> features = Scattering((3, 32, 32))
        >>> (out,) = features(torch.randn(2, 3, 32, 32))
        >>> out.shape
        torch.Size([2, 243, 8, 8])
    """

    def __init__(self, input_shape: tuple[int, ...], *, scales: int = 2, angles: int = 8) -> None:
        super().__init__()
        _validate.count(scales=scales, angles=angles)
        stride = 2**scales
        channels, *size = _shapes.image("scattering", input_shape, 1, smallest=2 * stride)
        if any(n % stride for n in size):
            raise ValueError(
                f"Expected scales={scales} so that 2^scales = {stride} divides height and width, got "
                f"input_shape={tuple(input_shape)!r}. Take fewer scales, or crop or pad the images."
            )
        self.scales = scales
        self.margin = stride
        self.output_shape = (
            channels * (1 + scales * angles + angles**2 * scales * (scales - 1) // 2),
            *(n // stride for n in size),
        )
        grid = [n + 2 * self.margin for n in size]
        directions = [(angles // 2 - 1 - k) * math.pi / angles for k in range(angles)]
        for j in range(scales):
            wavelets = torch.stack([_morlet(grid, j, angle, 4 / angles) for angle in directions])
            self.register_buffer(f"wavelets{j}", wavelets.float(), persistent=False)
            for axis, n in enumerate(size):
                average = _averages(n, self.margin, 2**j, _WIDTH * 2 ** (scales - 1))
                self.register_buffer(f"average{j}_{axis}", average.float(), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Maps images (n, *input_shape) to features (n, *output_shape)."""
        image = F.pad(x, [self.margin] * 4, mode="reflect")
        first, second = [], []
        for j in range(self.scales):
            moduli = self._moduli(image, 0, j)
            first.append(self._average(moduli, j))
            coarser = [self._average(self._moduli(moduli, j, k), k) for k in range(j + 1, self.scales)]
            if coarser:
                second.append(torch.cat(coarser, 3).flatten(2, 3))
        return (torch.cat([self._average(image, 0).unsqueeze(2), *first, *second], 2).flatten(1, 2),)

    def _moduli(self, x: Tensor, scale: int, coarser: int) -> Tensor:
        """Computes |x * wavelet| for each angle, on a new axis and on the grid of `coarser`."""
        wavelets = _low_frequencies(self.get_buffer(f"wavelets{coarser}"), x.shape[-2:])
        spectrum = torch.fft.fft2(x).unsqueeze(-3) * wavelets
        points: Tensor = torch.fft.ifft2(_folded(spectrum, 2 ** (coarser - scale)))
        return points.abs()

    def _average(self, x: Tensor, scale: int) -> Tensor:
        rows, columns = (self.get_buffer(f"average{scale}_{axis}") for axis in (0, 1))
        return rows @ x @ columns.T


def scattering(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    scales: int = 2,
    angles: int = 8,
    groups: int = 27,
) -> Staged:
    """Builds a linear classifier on the scattering transform, normalised within each example.

    The transform is `frozen`; GroupNorm without parameters and the linear layer, whose weights start at 0,
    are `trained`.

    Args:
        input_shape: `(channels, height, width)`; 2^scales divides height and width.
        classes: Number of classes.
        scales: Scales of the transform.
        angles: Angles of the transform.
        groups: Groups of the normalisation; divides the number of features at a place.

    Example:
        >>> model = scattering((3, 32, 32), 10)
        >>> sum(p.numel() for p in model.trained.parameters())
        155530
    """
    _validate.count(classes=classes)
    features = Scattering(input_shape, scales=scales, angles=angles)
    channels = features.output_shape[0]
    _shapes.divides(groups, channels)
    classifier = nn.Linear(math.prod(features.output_shape), classes)
    nn.init.zeros_(classifier.weight)
    nn.init.zeros_(classifier.bias)
    return Staged(
        features, nn.Sequential(nn.GroupNorm(groups, channels, affine=False), nn.Flatten(), classifier)
    )


def _morlet(grid: Sequence[int], scale: int, angle: float, slant: float) -> Tensor:
    """Returns the (real) spectrum of a wave in a Gaussian window, with mean 0."""
    width, frequency = math.ldexp(_WIDTH, scale), math.ldexp(_FREQUENCY, -scale)
    window = torch.zeros(*grid, dtype=torch.float64)
    wave = torch.zeros(*grid, dtype=torch.complex128)
    for rows in range(-2, 3):  # the filter is periodic; terms further away vanish in float64
        for columns in range(-2, 3):
            y = (torch.arange(grid[0], dtype=torch.float64) + rows * grid[0]).unsqueeze(1)
            x = torch.arange(grid[1], dtype=torch.float64) + columns * grid[1]
            along = y * math.cos(angle) + x * math.sin(angle)
            across = x * math.cos(angle) - y * math.sin(angle)
            here = torch.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2))
            window += here
            wave += torch.polar(here, frequency * along)
    wave -= wave.sum() / window.sum() * window
    spectrum: Tensor = torch.fft.fft2(wave).real * slant / (2 * math.pi * width**2)
    return spectrum


def _averages(size: int, margin: int, spacing: int, width: float) -> Tensor:
    """Returns the matrix that averages points `spacing` pixels apart around every margin-th pixel."""
    period = size + 2 * margin
    centers = torch.arange(margin, size + margin, margin, dtype=torch.float64)
    points = torch.arange(0, period, spacing, dtype=torch.float64)
    distance = (centers.unsqueeze(1) - points + period / 2) % period - period / 2
    return torch.exp(-(distance**2) / (2 * width**2)) * spacing / (math.sqrt(2 * math.pi) * width)


def _low_frequencies(spectrum: Tensor, size: Sequence[int]) -> Tensor:
    """Restricts a spectrum to the frequencies of a coarser grid."""
    for axis, n in zip((-2, -1), size, strict=True):
        half = n // 2
        spectrum = torch.cat([spectrum.narrow(axis, 0, half), spectrum.narrow(axis, -half, half)], axis)
    return spectrum


def _folded(spectrum: Tensor, factor: int) -> Tensor:
    """Returns the spectrum of every factor-th point."""
    for axis in (-2, -1):
        parts = spectrum.chunk(factor, axis)
        spectrum = sum(parts[1:], parts[0])  # much faster than a sum over an axis
    return spectrum / factor**2
