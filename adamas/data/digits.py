"""The 8x8 digits that come with scikit-learn: 1,797 images, no download."""

import torch
from torch.utils.data import TensorDataset

from adamas.data.base import Data
from adamas.data.extras import optional

_TEST_EVERY = 5  # every fifth image is a test image; the file is sorted by writer, not by digit


def digits() -> Data:
    """Loads 1,438 training and 359 test images of handwritten digits, pixels scaled to [-1, 1]."""
    bunch = optional("sklearn.datasets", "scikit-learn").load_digits()
    images = torch.from_numpy(bunch.images).float().unsqueeze(1) / 8 - 1  # (1797, 1, 8, 8)
    labels = torch.from_numpy(bunch.target).long()
    test = torch.arange(len(labels)) % _TEST_EVERY == _TEST_EVERY - 1
    return Data(
        name="digits",
        train=TensorDataset(images[~test], labels[~test]),
        test=TensorDataset(images[test], labels[test]),
        input_shape=(1, 8, 8),
        classes=10,
    )
