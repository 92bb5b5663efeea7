"""Numbers as words: a bound is never rounded below itself."""

import math
from decimal import ROUND_CEILING, Context, Decimal

_EXACT = Context(prec=400)  # digits of any float64 with its decimals


def rounded_up(value: float, decimals: int) -> str:
    """A bound as text: the least number of so many decimals that is not below it.

    Example:
        >>> rounded_up(0.78498, 2), rounded_up(1.5, 3), rounded_up(0.1 + 0.2, 1), rounded_up(math.inf, 2)
        ('0.79', '1.500', '0.4', 'inf')
    """
    if not math.isfinite(value):
        return f"{value:g}"
    unit = Decimal(1).scaleb(-decimals)
    return f"{Decimal(repr(float(value))).quantize(unit, ROUND_CEILING, _EXACT):f}"


def bound(value: float, digits: int = 4) -> str:
    """A bound as text with so many significant digits, rounded up.

    Example:
        >>> bound(7.479295), bound(0.784975), bound(123456.7), bound(1.0), bound(0.00012341)
        ('7.480', '0.7850', '123457', '1.000', '0.0001235')
    """
    if not math.isfinite(value) or value <= 0:
        return f"{value:g}"
    return rounded_up(value, max(digits - 1 - math.floor(math.log10(value)), 0))


def limit(value: float) -> str:
    """A number that somebody chose, such as a budget, as text: not rounded at all.

    Example:
        >>> limit(3.0), limit(0.784985), limit(3.0000004)
        ('3', '0.784985', '3.0000004')
    """
    return repr(float(value)).removesuffix(".0")
