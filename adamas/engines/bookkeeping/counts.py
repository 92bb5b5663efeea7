"""Numbers of examples as objects that know what they count, so that no use of one goes unnoticed.

A loss that depends on the number of examples lets one record change the gradients of all others. So while
a model runs, the sizes of its data along the example axis are `Count`s. They serve as sizes: they multiply
with other sizes, divide without remainder, and compare with each other. A comparison with a plain number is
answered where every batch of two or more examples has the same answer. Any other use is refused, with the
line of the user's code.
"""

import builtins
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn

import torch

from adamas.errors import UnsupportedError

_OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]), "<")

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


def refuse_count(use: str) -> NoReturn:
    """Raises for a use of the number of examples other than as a size."""
    raise UnsupportedError(
        f"The forward {use} in the batch ({user_line()}), which mixes the examples: adding one record would "
        "change the gradients of all others. Use it as a size only, or engine='loop'."
    )


class _Reads(threading.local):
    """The instructions at which this thread read a number of examples."""

    def __init__(self) -> None:
        self.places: list[tuple[int, CodeType, int]] = []


_reads = _Reads()


def _instruction(frame: FrameType) -> tuple[int, CodeType, int]:
    """Returns the current instruction of a frame; the frame itself would keep its variables alive."""
    return id(frame), frame.f_code, frame.f_lasti


def forget_reads() -> None:
    """Forgets all reads so far."""
    _reads.places = []


def check_reads(caller: FrameType | None = None) -> None:
    """Raises if a number of examples was read, other than as a size of the current call of torch.

    Args:
        caller: The frame that called a function of torch with such a size, and read it in the same
            instruction.
    """
    if _reads.places:
        own = None if caller is None else _instruction(caller)
        foreign = any(place != own for place in _reads.places)
        _reads.places = []
        if foreign:
            refuse_count("reads the number of examples")


class Unit:
    """The things that a `Count` counts: the examples of a batch, or rows that were chosen by their values.

    Attributes:
        length: How many there are.
        chosen: Whether values of the batch decided how many.
        single_differs: Whether a comparison was answered that a batch of one example answers otherwise.
    """

    def __init__(self, length: int, *, chosen: bool = False) -> None:
        self.length, self.chosen = length, chosen
        self.single_differs = False


class Count:
    """A multiple of the number of examples: a size to torch, and not a number to other code.

    It is not an `int`, because Python and C code read the value of an integer without calling it: `1.0 / n`
    calls no method of n. Torch calls `__index__` for a size, as `range` does; the instruction differs.
    """

    __slots__ = ("times", "unit")

    def __init__(self, times: int, unit: Unit) -> None:
        self.times, self.unit = times, unit

    @property
    def value(self) -> int:
        """The number, for the engine."""
        return self.times * self.unit.length

    def __index__(self) -> int:
        _reads.places.append(_instruction(sys._getframe(1)))
        return self.value

    def __repr__(self) -> str:
        return "n" if self.times == 1 else f"{self.times}n"

    def _refuse(self, use: str) -> NoReturn:
        refuse_count(f"{use} the number of {'chosen rows' if self.unit.chosen else 'examples'}")

    # --- sizes ----------------------------------------------------------------------------------------

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, int) or other < 0:
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
        if isinstance(other, Count) and other.unit is self.unit and other.times <= self.times:
            left = self.times - other.times
            return Count(left, self.unit) if left else 0
        if isinstance(other, int) and other == 0:
            return self
        self._refuse("computes with")

    def __floordiv__(self, other: Any) -> Any:
        if isinstance(other, Count) and other.unit is self.unit and self.times % other.times == 0:
            return self.times // other.times
        if isinstance(other, int) and other > 0 and self.times % other == 0:
            return Count(self.times // other, self.unit)
        self._refuse("computes with")

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, Count) and other.unit is self.unit:
            return self.times / other.times
        self._refuse("computes with")

    def __mod__(self, other: Any) -> Any:
        times = other.times if isinstance(other, Count) and other.unit is self.unit else other
        if isinstance(times, int) and times > 0 and self.times % times == 0:
            return 0
        self._refuse("computes with")

    def _refused(self, *_: Any) -> Any:
        self._refuse("computes with")

    __rsub__ = __rfloordiv__ = __rtruediv__ = __rmod__ = _refused
    __divmod__ = __rdivmod__ = __pow__ = __rpow__ = __neg__ = __pos__ = __abs__ = __invert__ = _refused
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _refused
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __matmul__ = __rmatmul__ = _refused
    __float__ = __int__ = __trunc__ = __round__ = __floor__ = __ceil__ = __complex__ = _refused
    __str__ = __format__ = _refused
    bit_length = bit_count = conjugate = to_bytes = as_integer_ratio = is_integer = _refused
    real = imag = numerator = denominator = property(_refused)

    # --- comparisons ----------------------------------------------------------------------------------

    def _compared(self, other: Any, compare: Callable[[int, int], bool], same: bool | None) -> bool:
        """Compares; `same` is the answer for all batches of two or more, or None if they differ."""
        if isinstance(other, Count) and other.unit is self.unit:
            return compare(self.times, other.times)
        if same is None or self.unit.chosen or isinstance(other, Count):
            if sys._getframe(2).f_code.co_filename == _SIZE_CHECKS:
                return compare(self.value, other.value if isinstance(other, Count) else other)
            self._refuse("asks for")
        if compare(self.times, other) != same:
            self.unit.single_differs = True
        return same

    def _beyond(self, other: Any, answer: bool, *, equal: bool) -> bool | None:
        """Returns the answer if every batch of two or more examples has more than the other number."""
        if isinstance(other, Count) or not isinstance(other, int | float):
            return None
        least = 2 * self.times
        return answer if other < least or (equal and other == least) else None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Count):
            return self._compared(other, lambda a, b: a == b, None)
        if not isinstance(other, int | float):
            return NotImplemented
        reached = other >= 2 * self.times and other % self.times == 0
        return self._compared(other, lambda a, b: a == b, None if reached else False)

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __lt__(self, other: Any) -> bool:
        return self._compared(other, lambda a, b: a < b, self._beyond(other, False, equal=True))

    def __le__(self, other: Any) -> bool:
        return self._compared(other, lambda a, b: a <= b, self._beyond(other, False, equal=False))

    def __gt__(self, other: Any) -> bool:
        return self._compared(other, lambda a, b: a > b, self._beyond(other, True, equal=False))

    def __ge__(self, other: Any) -> bool:
        return self._compared(other, lambda a, b: a >= b, self._beyond(other, True, equal=True))

    def __bool__(self) -> bool:
        if self.unit.chosen:
            self._refuse("asks for")
        return True

    def __hash__(self) -> int:
        return hash((self.times, id(self.unit)))

    def __deepcopy__(self, memo: Any) -> "Count":
        return self

    def __reduce__(self) -> Any:
        return int, (self.value,)


SIZE = (int, Count)
"""The types that a size of a tensor may have."""


class Shape(tuple[Any, ...]):
    """A tensor's shape with `Count`s; a `torch.Size` would lose them in `numel`."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        part = tuple.__getitem__(self, index)
        return Shape(part) if isinstance(index, slice) else part

    def __add__(self, other: Any) -> Any:
        return Shape(tuple.__add__(self, tuple(other)))

    def numel(self) -> Any:
        """Returns the product of the sizes."""
        return math.prod(self)


_plain_len = builtins.len


_plain_arange = torch.arange


@contextmanager
def counted_len(length: Callable[[Any], Any], arange: Callable[..., Any]) -> Iterator[None]:
    """Lets `len` return and `torch.arange` take a `Count`.

    Python itself would turn the result of `__len__` into a plain number, and torch refuses other objects than
    numbers before any mode sees them.

    Args:
        length: Returns the length of a tensor.
        arange: Takes the place of `torch.arange` for arguments with a `Count`.
    """

    def counted(value: Any, /) -> Any:
        return length(value) if isinstance(value, torch.Tensor) else _plain_len(value)

    def numbered(*args: Any, **kwargs: Any) -> Any:
        given = any(isinstance(value, Count) for value in (*args, *kwargs.values()))
        return (arange if given else _plain_arange)(*args, **kwargs)

    before = builtins.len, torch.arange
    builtins.len, torch.arange = counted, numbered
    try:
        yield
    finally:
        builtins.len, torch.arange = before


@contextmanager
def refused_by_torch() -> Iterator[None]:
    """Names the cause where torch itself refuses a `Count` because it wants a plain number."""
    try:
        yield
    except (TypeError, RuntimeError) as error:
        if Count.__name__ not in str(error):
            raise
        refuse_count(f"computes with the number of examples ({str(error).splitlines()[0]})")
