"""Rounds and formats numbers. An upper bound is always rounded up, a chosen limit is never rounded."""

import math
import struct
from decimal import ROUND_CEILING, Context, Decimal

_LARGEST_FLOAT32 = 3.4028234663852886e38
_EXACT = Context(prec=400)  # digits of any float64 with its decimals


def rounded_up(value: float, decimals: int | None = None, *, digits: int = 4) -> str:
    """Formats an upper bound, rounded up.

    Args:
        value: The bound.
        decimals: Round to this many decimal places.
        digits: Without `decimals`: round to this many significant digits. Whole numbers are shown in full.

    Example:
        >>> rounded_up(7.479295), rounded_up(0.784975), rounded_up(123456.7), rounded_up(0.00012341)
        ('7.480', '0.7850', '123457', '0.0001235')
        >>> rounded_up(0.78498, 2), rounded_up(1.5, 3), rounded_up(0.1 + 0.2, 1), rounded_up(math.inf, 2)
        ('0.79', '1.500', '0.4', 'inf')
    """
    if not math.isfinite(value):
        return f"{value:g}"
    if decimals is None:
        if value <= 0:
            return f"{value:g}"
        decimals = max(digits - 1 - math.floor(math.log10(value)), 0)
    unit = Decimal(1).scaleb(-decimals)
    return f"{Decimal(repr(float(value))).quantize(unit, ROUND_CEILING, _EXACT):f}"


def in_float32(value: float) -> float:
    """Returns the smallest number in single precision that is not below an upper bound of 0 or more.

    Loggers keep 32 bits, and would round to the nearest number.

    Example:
        >>> in_float32(1.5), in_float32(0.1), in_float32(3.1), in_float32(math.inf), in_float32(1e39)
        (1.5, 0.10000000149011612, 3.1000001430511475, inf, inf)
    """
    if value > _LARGEST_FLOAT32:
        return math.inf
    (bits,) = struct.unpack("<i", struct.pack("<f", value))
    nearest, above = struct.unpack("<2f", struct.pack("<2i", bits, bits + 1))
    return float(nearest if nearest >= value else above)


def limit(value: float) -> str:
    """Formats a chosen number, such as a budget, in full.

    Example:
        >>> limit(3.0), limit(0.784985), limit(3.0000004)
        ('3', '0.784985', '3.0000004')
    """
    return repr(float(value)).removesuffix(".0")


def duration(seconds: float) -> str:
    """Formats a duration with two or three digits.

    Example:
        >>> duration(41.7), duration(80), duration(720), duration(5 * 3600)
        ('42 seconds', '1 minute', '12 minutes', '5.0 hours')
    """
    if seconds < 59.5:
        return f"{seconds:.0f} seconds"
    if seconds < 5400:
        minutes = round(seconds / 60)
        return f"{minutes} minute{'s' * (minutes > 1)}"
    return f"{seconds / 3600:,.1f} hours"
