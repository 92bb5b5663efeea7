"""Checks arguments. Each check raises with the argument's name, its value and what was expected."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real


def positive(**values: float) -> None:
    """Raises unless every value is a finite number above 0."""
    _check(values, lambda x: 0 < x < math.inf, "> 0 and finite")


def positive_or_inf(**values: float) -> None:
    """Raises unless every value is above 0; infinity is allowed."""
    _check(values, lambda x: x > 0, "> 0")


def non_negative(**values: float) -> None:
    """Raises unless every value is a finite number, 0 or above."""
    _check(values, lambda x: 0 <= x < math.inf, ">= 0 and finite")


LEAST_NOISE_MULTIPLIER = 0.02
"""With less noise one release without sampling costs an epsilon above 1000, at any delta up to 0.999999."""

LARGEST_NOISE_MULTIPLIER = 2.0**20
"""Stronger noise leaves nothing of a sum of gradients."""

LEAST_DELTA = 1e-100
"""Below it, the normal distribution's tails approach the smallest float64 numbers."""


def noise_multiplier(**values: float) -> None:
    """Raises unless every value is a noise multiplier that can be accounted for, or 0: no noise at all."""
    _check(
        values,
        lambda x: x == 0 or LEAST_NOISE_MULTIPLIER <= x <= LARGEST_NOISE_MULTIPLIER,
        f"between {LEAST_NOISE_MULTIPLIER} and {LARGEST_NOISE_MULTIPLIER:.0f}, or 0 for a run that is not "
        "private: with less noise one release costs an epsilon above 1000, and more noise leaves no signal",
    )


def delta(**values: float) -> None:
    """Raises unless every value is a delta that can be accounted for."""
    probability(**values)
    _check(
        values,
        lambda x: x >= LEAST_DELTA,
        f">= {LEAST_DELTA:g}: smaller ones cannot be bounded in float64",
    )


def probability(**values: float) -> None:
    """Raises unless every value lies strictly between 0 and 1."""
    _check(values, lambda x: 0 < x < 1, "in (0, 1)")


def rate(**values: float) -> None:
    """Raises unless every value lies in (0, 1]."""
    _check(values, lambda x: 0 < x <= 1, "in (0, 1]")


def decay(**values: float) -> None:
    """Raises unless every value lies in [0, 1)."""
    _check(values, lambda x: 0 <= x < 1, "in [0, 1)")


def decays(**values: Sequence[float]) -> None:
    """Raises unless every value is a pair of numbers in [0, 1)."""
    for name, pair in values.items():
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise TypeError(f"Expected {name}={pair!r} to be a pair of numbers.")
        decay(**{f"{name}[{index}]": value for index, value in enumerate(pair)})


def count(**values: int) -> None:
    """Raises unless every value is a whole number, 1 or above."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"Expected {name}={value!r} to be a whole number.")
    _check(values, lambda x: x >= 1, ">= 1")


def whole(**values: int) -> None:
    """Raises unless every value is a whole number, 0 or above."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"Expected {name}={value!r} to be a whole number.")
    _check(values, lambda x: x >= 0, ">= 0")


def one_of(choices: Iterable[object], **values: object) -> None:
    """Raises unless every value is among the choices."""
    known = list(choices)
    for name, value in values.items():
        if value not in known:
            raise ValueError(f"Expected {name}={value!r} to be one of {', '.join(map(repr, known))}.")


def _check(values: Mapping[str, float], accept: Callable[[float], bool], expected: str) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"Expected {name}={value!r} to be a number {expected}.")
        if not accept(value):
            raise ValueError(f"Expected {name}={value!r} {expected}.")
