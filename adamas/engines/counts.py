"""Numbers of examples: integers that know what they count, so that nothing can depend on them unseen.

A loss that depends on the number of examples lets one record change the gradients of all others. So while
a model runs, the sizes of its data along the example axis are `Count`s. They serve as sizes: they multiply
with other sizes, divide without remainder, and compare with each other. A comparison with a plain number is
answered where every batch of two or more examples has the same answer. Any other use is refused, with the
line of the user's code.
"""

import builtins
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch

from adamas.errors import UnsupportedError

_OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<")

# Torch's own checks that the sizes of recurrent layers' states fit, which raise if they do not.
_SIZE_CHECKS = torch.nn.modules.rnn.__file__


def user_line() -> str:
    """Returns the innermost line that is neither torch's nor ours, as `file:line`."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_OWN):
            return f"{Path(file).name}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "an unknown line"


class Unit:
    """What a `Count` counts: the examples of a batch, or rows that were chosen by their values.

    Attributes:
        length: How many there are.
        chosen: Whether values of the batch decided how many.
        single_differs: Whether a comparison was answered that a batch of one example answers otherwise.
    """

    def __init__(self, length: int, *, chosen: bool = False) -> None:
        self.length, self.chosen = length, chosen
        self.single_differs = False


class Count(int):
    """A multiple of the number of examples."""

    times: int
    unit: Unit

    def __new__(cls, times: int, unit: Unit) -> "Count":
        """Makes `times` as many as the unit has."""
        self = super().__new__(cls, times * unit.length)
        self.times, self.unit = times, unit
        return self

    def _refuse(self, use: str) -> NoReturn:
        what = "chosen rows" if self.unit.chosen else "examples"
        raise UnsupportedError(
            f"The forward {use} the number of {what} in the batch ({user_line()}), which mixes the examples: "
            "adding one record would change the gradients of all others. Use it as a size only, or "
            "engine='loop'."
        )

    # --- sizes ----------------------------------------------------------------------------------------

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Count) or not isinstance(other, int) or other < 0:
            self._refuse("computes with")
        return Count(self.times * other, self.unit) if other else 0

    __rmul__ = __mul__

    def __add__(self, other: Any) -> Any:
        if isinstance(other, Count) and other.unit is self.unit:
            return Count(self.times + other.times, self.unit)
        if isinstance(other, int) and other == 0:
            return self
        self._refuse("computes with")

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, Count) and other.unit is self.unit:
            left = self.times - other.times
            if left < 0:
                self._refuse("computes with")
            return Count(left, self.unit) if left else 0
        if isinstance(other, int) and not isinstance(other, Count) and other == 0:
            return self
        self._refuse("computes with")

    def __floordiv__(self, other: Any) -> Any:
        if isinstance(other, Count) and other.unit is self.unit and self.times % other.times == 0:
            return self.times // other.times
        if isinstance(other, int) and not isinstance(other, Count) and other > 0 and self.times % other == 0:
            return Count(self.times // other, self.unit)
        self._refuse("computes with")

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, Count) and other.unit is self.unit:
            return self.times / other.times
        self._refuse("computes with")

    def __mod__(self, other: Any) -> Any:
        times = other.times if isinstance(other, Count) and other.unit is self.unit else other
        if isinstance(times, int) and not isinstance(times, Count) and times > 0 and self.times % times == 0:
            return 0
        self._refuse("computes with")

    def _refused(self, *_: Any) -> NoReturn:
        self._refuse("computes with")

    __rsub__ = __rfloordiv__ = __rtruediv__ = __rmod__ = _refused
    __divmod__ = __rdivmod__ = __pow__ = __rpow__ = __neg__ = __pos__ = __abs__ = __invert__ = _refused
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _refused
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refused
    __float__ = __int__ = __trunc__ = __round__ = __floor__ = __ceil__ = __complex__ = _refused
    bit_length = bit_count = conjugate = as_integer_ratio = is_integer = _refused
    to_bytes = _refused  # type: ignore[assignment]
    real = imag = numerator = denominator = property(_refused)

    # --- comparisons ----------------------------------------------------------------------------------

    def _compared(self, other: Any, compare: Callable[[int, int], bool], same: bool | None) -> bool:
        """Compares; `same` is the answer for all batches of two or more, or None if they differ."""
        if isinstance(other, Count) and other.unit is self.unit:
            return compare(self.times, other.times)
        if same is None or self.unit.chosen or isinstance(other, Count):
            if sys._getframe(2).f_code.co_filename == _SIZE_CHECKS:
                return compare(int.__index__(self), int.__index__(other))
            self._refuse("asks for")
        if compare(self.times, other) != same:
            self.unit.single_differs = True
        return same

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int | float):
            return NotImplemented
        reached = other >= 2 * self.times and other % self.times == 0
        return self._compared(other, lambda a, b: a == b, None if reached else False)

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __lt__(self, other: Any) -> bool:
        return self._compared(other, lambda a, b: a < b, False if other <= 2 * self.times else None)

    def __le__(self, other: Any) -> bool:
        return self._compared(other, lambda a, b: a <= b, False if other < 2 * self.times else None)

    def __gt__(self, other: Any) -> bool:
        return self._compared(other, lambda a, b: a > b, True if other < 2 * self.times else None)

    def __ge__(self, other: Any) -> bool:
        return self._compared(other, lambda a, b: a >= b, True if other <= 2 * self.times else None)

    def __bool__(self) -> bool:
        if self.unit.chosen:
            self._refuse("asks for")
        return True

    def __hash__(self) -> int:
        return int.__hash__(self)

    def __deepcopy__(self, memo: Any) -> "Count":
        return self

    def __reduce__(self) -> Any:
        return int, (int.__index__(self),)


class Shape(tuple[int, ...]):
    """A tensor's shape with `Count`s, which a `torch.Size` would lose in `numel`."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        part = tuple.__getitem__(self, index)
        return Shape(part) if isinstance(index, slice) else part

    def __add__(self, other: Any) -> Any:
        return Shape(tuple.__add__(self, tuple(other)))

    def numel(self) -> int:
        """Returns the product of the sizes."""
        return math.prod(self)


_plain_len = builtins.len


@contextmanager
def counted_len(length: Callable[[Any], Any]) -> Iterator[None]:
    """Lets `len` of a batch's tensors return a `Count`: Python itself would make a plain number of it.

    Args:
        length: Returns the length of a tensor.
    """

    def counted(value: Any, /) -> Any:
        return length(value) if isinstance(value, torch.Tensor) else _plain_len(value)

    before = builtins.len
    builtins.len = counted
    try:
        yield
    finally:
        builtins.len = before
