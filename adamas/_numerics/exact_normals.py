"""Exact normal values by interval refining: more bits are drawn until only one rounded value is left.

A pair of normal values is a function (Box and Muller 1958) of two uniform ones, infinite strings of random
bits. From the first bits follows an interval that holds the value, in decimal arithmetic with bounds on its
errors. Where the whole interval rounds to one integer, no further bit can change the result.
"""

from collections.abc import Callable
from decimal import Context, Decimal, getcontext, localcontext
from functools import cache
from typing import TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray

WHOLE = 63
"""Bits of a uniform value: i / 2^63 for a signed 64-bit i is uniform in [-1, 1)."""


def decided(
    first: int,
    second: int,
    more: Callable[[int], Array],
    *,
    steps: float,
    sine: bool,
    offset: float = 0.0,
) -> int:
    """Rounds `steps * x + offset` to an integer, for the normal value `x` of two infinite strings of bits.

    Args:
        first: The first 64 bits of the radius, as a signed number.
        second: The first 64 bits of the angle.
        more: `more(words)` returns the next 64-bit words, alternating between radius and angle.
        steps: A power of 2, by which `x` is multiplied before rounding.
        sine: Whether `x` is the sine of its pair.
        offset: A number that is added before rounding.
    """
    words = 0  # beyond the first of each
    while True:
        following = [int(word) for word in more(2 * words)] if words else []
        words = 2 * words or 1
        low, width = normal_interval(first, second, following, sine=sine)
        if width is None:
            continue
        with localcontext(Context()) as context:  # not the user's
            context.prec = 100 + 20 * len(following)  # more than the width can see
            value = Decimal(steps) * low + Decimal(offset)
            integer = value.to_integral_value()
            if abs(value - integer) + Decimal(steps) * width < Decimal("0.5"):
                return int(integer)


def normal_interval(
    first: int, second: int, following: list[int], *, sine: bool
) -> tuple[Decimal, Decimal | None]:
    """Returns a number, and how far from it the normal value of any string with these first bits may be.

    The distance is None if there is no bound: all bits of the radius are 0.
    """
    for radius_word, angle_word in zip(following[::2], following[1::2], strict=True):
        first, second = (first << 64) + radius_word, (second << 64) + angle_word
    digits = WHOLE + 32 * len(following)
    least = min(abs(first), abs(first + 1))  # of radii in [least, least + 1] / 2^digits
    if least == 0:
        return Decimal(0), None
    with localcontext(Context()) as context:  # not the user's
        # A rounding is wrong by 10^-prec, 2^(digits/2) times as much after a root near 0: by less than 10^-10
        # of the last bit, of which one is added to the width for all of them.
        context.prec = 16 + digits // 2
        unit = Decimal(2) ** -digits
        square = -2 * ((least + 1) * unit).ln()
        radii = [square.sqrt(), (square + Decimal(2) / least).sqrt()]  # ln(1 + 1/k) <= 1/k
        pi = _pi(context.prec)
        direction = _cosine(pi * (second * unit - (Decimal("0.5") if sine else 0)))
        # Of r cos(t): r is in an interval, t in one of length pi 2^-digits, and cos changes by no more.
        width = (radii[1] - radii[0]) + radii[1] * 4 * unit + unit
        return radii[0] * direction, width


def _cosine(x: Decimal) -> Decimal:
    """Sums Taylor's series. Its terms fall from the fifth on, as |x| < 5."""
    total, term = Decimal(1), Decimal(1)
    square, k = x * x, 0
    least = Decimal(10) ** -(getcontext().prec + 2)
    while k < 8 or abs(term) > least:
        k += 2
        term *= -square / (k * (k - 1))
        total += term
    return total


@cache
def _pi(digits: int) -> Decimal:
    """Computes pi by Machin's formula, in integers with ten digits to spare."""
    one: int = 10 ** (digits + 10)
    return Decimal(4 * (4 * _arctangent(5, one) - _arctangent(239, one))) / one


def _arctangent(inverse: int, one: int) -> int:
    total, power, k = 0, one // inverse, 1
    while power:
        total += power // k if k % 4 == 1 else -(power // k)
        power //= inverse**2
        k += 2
    return total
