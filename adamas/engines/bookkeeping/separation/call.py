"""One call of a torch function, with what is known of its arguments."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from adamas.engines.bookkeeping.counts import Unit
from adamas.engines.bookkeeping.places import Place, Rows, equal_along


class Mixing(Exception):
    """Raised, with the reason, if a call is not proven to keep the examples apart."""


@dataclass(frozen=True, slots=True)
class Picks:
    """The rows that an index tensor picks from an axis of examples, so that their examples are known.

    Attributes:
        source: The place that may be indexed, on any axis.
        rows: The picked rows; None for every example once, in order.
    """

    source: Place
    rows: Rows | None


@dataclass(slots=True)
class Mark:
    """Facts about a tensor of the running model.

    Attributes:
        place: Where its examples are; None for a constant, or if they are mixed.
        why: Why its examples are mixed; None if they are not.
        picks: What it picks, for an index tensor.
        total: Whether it is a sum over the examples of values that are separated.
        made: Whether it is a constant that was made in this forward and may be written to.
        chosen: The rows that a mask chooses.
        alike: Whether it is a constant that was spread over the examples, the same for each.
        numbers: Whether its values are positions of examples, which may only be used to pick rows.
    """

    owner: Any
    place: Place | None
    why: str | None = None
    picks: Picks | None = None
    total: bool = False
    made: bool = False
    chosen: Rows | None = None
    alike: bool = False
    numbers: bool = False


class _Constant:
    """The mark of a tensor that was seen to be made of constants; copies of the tensor share it."""

    __slots__ = ()
    owner, numbers = None, False

    def __reduce__(self) -> str:
        return "CONSTANT"


CONSTANT = _Constant()
MARK = "_adamas_mark"
"""The attribute of a tensor that holds its mark."""


Found: TypeAlias = "Place | Mark | list[Place | Mark | None] | None"
"""The place in the result, or one for each of its tensors."""

ALL = "all"
"""All axes."""

PACKED_SIZES = "the sizes of packed sequences tell of all examples (pack_padded_sequence)"
"""Why batch sizes of packed sequences are mixed; used as a size, they stand for the number of examples."""


class Call:
    """One call of a torch function, with what is known of its arguments.

    Args:
        name: The function's name.
        args: Its arguments.
        kwargs: Its named arguments.
        result: Its result; for a function that works in place, the tensor that it will change.
        mark: Returns what is known of a tensor, None for a constant.
        unit: The examples of the batch.
    """

    __slots__ = ("args", "kwargs", "mark", "n", "name", "owner", "result", "unit")

    def __init__(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        mark: Callable[[Tensor], Mark | None],
        unit: Unit,
        owner: Any = None,
    ) -> None:
        self.name, self.args, self.kwargs, self.result = name, args, kwargs, result
        self.mark, self.unit, self.n, self.owner = mark, unit, unit.length, owner

    def get(self, position: int, *names: str, default: Any = None) -> Any:
        """Returns an argument by position or by one of its names."""
        if position < len(self.args):
            return self.args[position]
        for name in names:
            if name in self.kwargs:
                return self.kwargs[name]
        return default

    @property
    def first(self) -> Tensor:
        """The tensor that the function is applied to."""
        value: Any = self.args[0] if self.args else self.kwargs.get("input", self.kwargs.get("query"))
        if not isinstance(value, Tensor):
            raise Mixing(f"{self.name} is followed only with a tensor as its first argument")
        return value

    def place(self, t: Any) -> Place | None:
        """Returns where a tensor's examples are, None for a constant; raises if they are mixed."""
        if not isinstance(t, Tensor):
            return None
        mark = self.mark(t)
        if mark is None:
            return None
        if mark.why is not None:
            raise Mixing(mark.why)
        return mark.place

    def tensors(self) -> Iterator[Tensor]:
        """Yields the tensors among the arguments."""
        for value in (*self.args, *self.kwargs.values()):
            if isinstance(value, Tensor):
                yield value
            elif isinstance(value, list | tuple):
                yield from (item for item in value if isinstance(item, Tensor))

    def constant(self, t: Tensor, axis: int, place: Place) -> None:
        """Raises unless a constant is the same for each example, on the axis where it meets them."""
        if axis >= 0 and t.shape[axis] != 1 and not equal_along(t, axis, place, self.n):
            raise Mixing(f"{self.name} combines the examples with a constant that differs by their position")

    def only(self, *data: Tensor) -> None:
        """Raises if a tensor other than these holds data."""
        known = set(map(id, data))
        for t in self.tensors():
            if id(t) not in known and self.place(t) is not None:
                raise Mixing(f"{self.name} takes data where it is only known to take constants")
