"""The scattering transform matches Kymatio and its own definition."""

import pytest
import torch
from torch import Tensor

from adamas.models import (
    Scattering,
    scattering,
)

# Coefficients at place (1, 2) of `stripes` by Kymatio 0.3.0: `Scattering2D(scales, size, L=4)`.
KYMATIO = {
    (1, 8, 12): [-0.23526, 0.12983, 0.12741, 0.13697, 0.05654],
    (2, 16, 24): [
        *(0.61919, 0.14342, 0.13693, 0.13925, 0.05703, 0.29049, 0.28306, 0.08058, 0.06632),
        *(0.01448, 0.01382, 0.00223, 0.00184, 0.01074, 0.00957, 0.00812, 0.01122),
        *(0.00371, 0.00537, 0.0159, 0.00598, 0.00457, 0.0043, 0.00681, 0.00419),
    ],
}


def stripes(height: int, width: int) -> Tensor:
    y, x = torch.arange(height).unsqueeze(1), torch.arange(width)
    return (torch.cos(0.7 * y + 0.3 * x) + (3 * y + 2 * x) % 5 / 5)[None, None]


@pytest.mark.parametrize(("scales", "height", "width"), KYMATIO)
def test_the_scattering_transform_equals_kymatio(scales, height, width):
    (features,) = Scattering((1, height, width), scales=scales, angles=4)(stripes(height, width))
    # Kymatio drops the high frequencies of the average on coarser grids, and rounds pi.
    rtol = 2e-4 if scales == 1 else 1.2e-2
    expected = torch.tensor(KYMATIO[scales, height, width])
    torch.testing.assert_close(features[0, :, 1, 2], expected, rtol=rtol, atol=1e-5)


def test_a_constant_image_has_only_its_average():
    (features,) = Scattering((1, 16, 16))(torch.full((1, 1, 16, 16), 3.0))
    torch.testing.assert_close(features[:, 0], torch.full((1, 4, 4), 3.0), rtol=1e-3, atol=0)
    assert float(features[:, 1:].abs().max()) < 1e-5


def test_shifting_the_image_by_the_stride_shifts_the_features():
    image = torch.zeros(2, 1, 32, 32)
    blob = torch.randn(6, 6)
    image[0, 0, 10:16, 10:16] = blob
    image[1, 0, 14:20, 10:16] = blob
    (features,) = Scattering((1, 32, 32))(image)
    torch.testing.assert_close(features[1, :, 2:6], features[0, :, 1:5], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(features[1], features[0], atol=1e-2)


def test_a_size_that_the_stride_does_not_divide_is_refused():
    with pytest.raises(ValueError, match=r"scales=3 .* divides height and width, got .*28"):
        Scattering((1, 28, 28), scales=3)
    with pytest.raises(ValueError, match="groups=7 to divide"):
        scattering((1, 28, 28), 10, groups=7)
