"""Numbers as words: a bound is never rounded below itself."""

import math
from decimal import Decimal


def rounded_up(value: float, decimals: int) -> str:
    """A bound as text: the least number of so many decimals that is not below it.

    What a computation in float64 adds in its last digits is not rounded up to a whole unit.

    Example:
        >>> rounded_up(0.78498, 2), rounded_up(1.5, 3), rounded_up(0.1 + 0.2, 1), rounded_up(math.inf, 2)
        ('0.79', '1.500', '0.3', 'inf')
    """
    text = f"{value:.{decimals}f}"
    if not math.isfinite(value) or float(text) >= value or math.isclose(float(text), value, rel_tol=1e-12):
        return text
    return f"{Decimal(text) + Decimal(1).scaleb(-decimals):f}"


def bound(value: float, digits: int = 4) -> str:
    """A bound as text with so many significant digits, rounded up.

    Example:
        >>> bound(7.479295), bound(0.784975), bound(123456.7), bound(1.0), bound(0.00012341)
        ('7.480', '0.7850', '123457', '1.000', '0.0001235')
    """
    if not math.isfinite(value) or value <= 0:
        return f"{value:g}"
    return rounded_up(value, max(digits - 1 - math.floor(math.log10(value)), 0))
