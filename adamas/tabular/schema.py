"""The public description of a table: bounds of its numbers, categories of its texts, values of its target.

Training reads rows by this description alone. So no row can change a model's inputs, outputs or shape.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np

Bounds = tuple[float, float]
"""The smallest and the largest value."""


@dataclass(frozen=True)
class Number:
    """A numeric column. Values are clipped to the bounds; a missing one counts as the middle.

    Attributes:
        name: Its name.
        low: Its lower bound.
        high: Its upper bound.
    """

    name: Hashable
    low: float
    high: float

    def __post_init__(self) -> None:
        checked_bounds((self.low, self.high), f"bounds of {self.name!r}")

    @property
    def width(self) -> int:
        """Inputs of the model: the value, and whether it is missing."""
        return 2


@dataclass(frozen=True)
class Category:
    """A column of categories. Unknown and missing values share one further category.

    Attributes:
        name: Its name.
        values: Its categories.
    """

    name: Hashable
    values: tuple[Hashable, ...]

    def __post_init__(self) -> None:
        known = all(isinstance(value, Hashable) for value in self.values)
        if not self.values or not known or len(set(self.values)) < len(self.values):
            raise ValueError(
                f"Expected categories of {self.name!r} to be one or more different values, got "
                f"{list(self.values)!r}."
            )

    @property
    def width(self) -> int:
        """Inputs of the model: one for each category, and one for unknown and missing values."""
        return len(self.values) + 1


Column = Number | Category


@dataclass(frozen=True)
class Schema:
    """The columns that a model reads, in their order.

    Example:
        >>> Schema((Number("age", 0, 120), Category("ward", ("A", "B")))).width
        5
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"Expected a schema of one or more columns of different names, got {names!r}.")

    @property
    def width(self) -> int:
        """Inputs of the model."""
        return sum(column.width for column in self.columns)


def is_pair(value: object) -> bool:
    """Tells whether a value is a pair of numbers."""
    if isinstance(value, np.ndarray):
        return value.shape == (2,) and value.dtype.kind in "iuf"
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) == 2
        and all(isinstance(number, Real) and not isinstance(number, bool) for number in value)
    )


def checked_bounds(value: object, name: str) -> Bounds:
    """Returns bounds as floats; raises unless they are a pair of finite numbers, the lower one first."""
    if not is_pair(value):
        raise ValueError(f"Expected {name} to be a pair of numbers (low, high), got {value!r}.")
    assert isinstance(value, Sequence | np.ndarray)
    low, high = float(value[0]), float(value[1])
    if not (math.isfinite(low) and math.isfinite(high) and low < high and math.isfinite(high - low)):
        raise ValueError(f"Expected {name} to be finite, with low < high, got {value!r}.")
    return low, high
