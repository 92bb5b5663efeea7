"""Reads images in IDX files, the format of MNIST and its successors."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from adamas.data.base import Data

FILES = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]
"""Names of the four files."""


def idx_data(name: str, contents: Mapping[str, bytes], mean: float, std: float) -> Data:
    """Builds 60,000 training and 10,000 test images of 28x28 pixels, standardised, from the four files."""

    def split(prefix: str, count: int) -> TensorDataset:
        images = idx(contents[f"{prefix}-images-idx3-ubyte"], (count, 28, 28), f"{prefix}-images-idx3-ubyte")
        labels = idx(contents[f"{prefix}-labels-idx1-ubyte"], (count,), f"{prefix}-labels-idx1-ubyte")
        return TensorDataset(((images.float() / 255 - mean) / std).unsqueeze(1), labels.long())

    return Data(name, split("train", 60_000), split("t10k", 10_000), input_shape=(1, 28, 28), classes=10)


def idx(raw: bytes, shape: tuple[int, ...], name: str) -> Tensor:
    """Reads the values of an IDX file: a magic number with the number of axes, their lengths, the bytes."""
    header = np.frombuffer(raw[: 4 * (1 + len(shape))].ljust(4 * (1 + len(shape)), b"\0"), dtype=">i4")
    expected = (0x0800 + len(shape), *shape)
    if tuple(header) != expected or len(raw) != header.nbytes + int(np.prod(shape)):
        raise RuntimeError(f"{name} is not an IDX file of shape {shape}.")
    values = np.frombuffer(raw, dtype=np.uint8, offset=header.nbytes).reshape(shape)
    return torch.from_numpy(values.copy())
