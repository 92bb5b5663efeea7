"""The proof: finds where the examples are in the result of each call on data, by the table of `separation`.

Every call is proven in every step. A call that cannot be proven marks its result as mixed, with the reason;
a call that writes in place is judged before it runs.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from adamas.engines.bookkeeping.arguments import tensors_in, without_counts
from adamas.engines.bookkeeping.counts import user_line
from adamas.engines.bookkeeping.places import Place
from adamas.engines.bookkeeping.separation import (
    CUTS,
    IN_PLACE,
    INDEXING,
    KEEPS_VALUES,
    MARK,
    READS_NO_VALUES,
    TABLE,
    TAKES_MIXED,
    Call,
    Mark,
    Mixing,
    Picks,
)
from adamas.engines.bookkeeping.tracking import Tracker
from adamas.errors import UnsupportedError


class Prover(Tracker):
    """Proves calls on data, and marks their results."""

    def prove(
        self,
        func: Any,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        tensors: list[Tensor],
    ) -> None:
        """Finds where the examples are in the result of a call, by the table, and marks it.

        Args:
            func: The function.
            name: Its name.
            args: Its arguments.
            kwargs: Its named arguments.
            result: What it returned.
            tensors: The tensors among its arguments.
        """
        try:
            self._check_mixed(func, tensors)
            found = self.rule(func, name)(Call(name, args, kwargs, result, self.mark, self.unit, self.unit))
            self._check_sizes(name, found, result)
            if found is None and func not in READS_NO_VALUES:
                self._check_forgotten(name, tensors)
        except Mixing as error:
            if func in CUTS and not isinstance(
                result, Tensor
            ):  # the number of pieces would reveal the number of examples
                self.refuse_mixing(self._reason(error))
            found = Mark(self.unit, None, self._reason(error))
        if not isinstance(found, Mark) and self._has_numbers(func, args, kwargs, tensors):
            outputs = tensors_in(result)
            if func not in KEEPS_VALUES and any(t.is_floating_point() or t.is_complex() for t in outputs):
                why = f"{name} computes with the position of the examples in the batch ({user_line()})"
                found = Mark(self.unit, None, why)
            elif isinstance(found, Place):
                found = Mark(self.unit, found, numbers=True, picks=self._picks(func, args, found, result))
        if isinstance(found, Place):
            mark = Mark(self.unit, found)
            if func in KEEPS_VALUES:
                source = self.mark(args[0]) if args and isinstance(args[0], Tensor) else None
                if source is not None:
                    if source.picks is not None:
                        mark.picks = self._picks(func, args, found, result)
                    mark.alike = source.alike and not any(map(self.is_data, tensors_in((args[1:], kwargs))))
                    mark.numbers = source.numbers
            found = mark
        if isinstance(result, Tensor):
            assert not isinstance(found, list)
            self.set_mark(result, found)
        elif isinstance(found, list):
            for t, one in zip(tensors_in(result), found, strict=True):
                self.set_mark(t, one)
        else:
            for t in tensors_in(result):
                self.set_mark(t, found)

    def _has_numbers(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> bool:
        """Tells whether positions of examples are among the arguments, other than as an index."""
        if func in INDEXING:
            named = [value for key, value in kwargs.items() if key != "index"]
            tensors = tensors_in((args[:1], args[2:] if func is Tensor.__setitem__ else args[3:], named))
        return any(map(self.has_numbers, tensors))

    def _picks(self, func: Any, args: tuple[Any, ...], place: Place, result: Any) -> Picks | None:
        """Returns what an index tensor picks after its values were moved."""
        if func not in KEEPS_VALUES or not args or not isinstance(args[0], Tensor):
            return None
        if not isinstance(result, Tensor) or result.dtype not in (torch.int64, torch.int32):
            return None  # other numbers are rounded, or wrap around
        mark = self.mark(args[0])
        return None if mark is None or mark.picks is None else Picks(mark.picks.source, place.rows)

    def _check_mixed(self, func: Any, tensors: list[Tensor]) -> None:
        """Raises if a mixed value is among the arguments, whether as a size or as a number."""
        if func in TAKES_MIXED:
            return
        for t in tensors:
            mark = t.__dict__.get(MARK)
            if mark is None or mark.owner is not self.unit:
                mark = self.mark(t)
            if mark is not None and mark.why is not None:
                raise Mixing(mark.why)

    def _check_forgotten(self, name: str, tensors: list[Tensor]) -> None:
        """Raises if data is among the arguments of a call whose result is taken for a constant."""
        for t in tensors:
            mark = self.mark(t)
            if mark is not None and mark.place is not None and not mark.alike:
                raise Mixing(f"{name} takes data where it is only known to take constants")

    def _check_sizes(self, name: str, found: Any, result: Any) -> None:
        """Raises if the axis of a place does not have the length that its examples need."""
        if found is None:
            return
        if isinstance(result, Tensor):
            pairs: Any = ((result, found),)
        else:
            tensors = tensors_in(result)
            pairs = zip(tensors, found if isinstance(found, list) else [found] * len(tensors), strict=True)
        for t, one in pairs:
            place = one.place if isinstance(one, Mark) else one
            if place is None:
                continue
            size = t.shape[place.axis] if 0 <= place.axis < t.dim() else -1
            if size != place.outer * place.length(self.n) * place.inner:
                raise Mixing(f"{name} returns a tensor without an axis of examples")

    def rule(self, func: Any, name: str) -> Callable[[Call], Any]:
        """Returns the rule of a function."""
        rule = TABLE.get(func)
        return _without_row if rule is None else rule

    def write(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Makes a call that changes its first argument in place, if that keeps the examples apart."""
        target: Tensor = args[0]
        tensors = tensors_in((args, kwargs))
        try:
            self._check_mixed(func, tensors)
            found = IN_PLACE[func](Call(name, args, kwargs, target, self.mark, self.unit, self.unit))
        except Mixing as error:
            self.refuse_mixing(self._reason(error))
        before = self.mark(target)
        args, kwargs = without_counts(args), without_counts(kwargs)
        if found is None:
            return func(*args, **kwargs)
        if not isinstance(found, Mark) and self._has_numbers(func, args, kwargs, tensors):
            self.refuse_mixing(f"{name} writes the position of the examples ({user_line()})")
        assert not isinstance(found, list)
        place = found.place if isinstance(found, Mark) else found
        if before is None or before.made or before.alike:
            if before is None or self._is_shared(target):
                raise UnsupportedError(
                    f"The forward writes data of the batch into a tensor that was not made in this step "
                    f"({name}, {user_line()}), so that examples meet through it. Write to a new tensor, or "
                    "use engine='loop'."
                )
        elif place != before.place:
            self.refuse_mixing(f"{name} writes each example's values to others ({user_line()})")
        try:
            result = func(*args, **kwargs)
        except RuntimeError as error:
            if "custom Function" not in str(error):
                raise
            raise UnsupportedError(
                f"The forward changes copies of a weight in place ({name}, {user_line()}). Use the function "
                "that returns a new tensor, or engine='loop'."
            ) from error
        for t in {id(t): t for t in (target, *tensors_in(result))}.values():
            self.set_mark(t, found)
        return result

    def _is_shared(self, t: Tensor) -> bool:
        """Tells whether another tensor has the same memory."""
        known = 2  # its own reference, and the one that counts
        if self.below is not None:
            known += self.below.holds(t)
        return torch._C._storage_Use_Count(t.untyped_storage()._cdata) > known

    def _reason(self, error: Mixing) -> str:
        text = str(error)
        return text if text.endswith(")") else f"{text} ({user_line()})"


def _without_row(call: Call) -> NoReturn:
    raise Mixing(f"{call.name} is not known to treat each example by itself")
