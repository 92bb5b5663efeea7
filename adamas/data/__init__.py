"""Data sets by name, as tensors, with a fixed split into training and test examples."""

from collections.abc import Callable

from adamas import _validate
from adamas.data.base import Data
from adamas.data.digits import digits
from adamas.data.mnist import mnist

DATASETS: dict[str, Callable[[], Data]] = {"digits": digits, "mnist": mnist}
"""Data sets by name."""


def load(name: str) -> Data:
    """Loads a data set by its name in `DATASETS`, fetching it once if it is not in the cache.

    Example:
        >>> from adamas import data
        >>> digits = data.load("digits")
        >>> len(digits.train), len(digits.test), digits.input_shape, digits.classes
        (1438, 359, (1, 8, 8), 10)
    """
    _validate.one_of(DATASETS, data=name)
    return DATASETS[name]()


__all__ = ["DATASETS", "Data", "load"]
