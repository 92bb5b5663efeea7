"""What a data set is, and where fetched files are kept."""

import os
from dataclasses import dataclass
from pathlib import Path

from torch.utils.data import TensorDataset


@dataclass(frozen=True)
class Data:
    """Training and test examples of a classification task, as `(input, label)` tensors."""

    name: str
    train: TensorDataset
    test: TensorDataset
    input_shape: tuple[int, ...]
    classes: int


def cache_folder() -> Path:
    """Where fetched data is kept: `ADAMAS_HOME`, else `adamas` in the user's cache folder."""
    if home := os.environ.get("ADAMAS_HOME"):
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adamas"
