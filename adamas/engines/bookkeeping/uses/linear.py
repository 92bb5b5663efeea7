"""Stand-ins for linear maps and matrix products."""

from typing import Any

from torch import Tensor

from adamas.engines.bookkeeping import functions
from adamas.engines.bookkeeping.arguments import bound
from adamas.engines.bookkeeping.counts import user_line
from adamas.engines.bookkeeping.measured import measured, row_map_of
from adamas.engines.bookkeeping.outer import Outer
from adamas.engines.bookkeeping.places import by_example
from adamas.engines.bookkeeping.records import Dense
from adamas.engines.bookkeeping.tracking import Tracker
from adamas.engines.bookkeeping.uses.common import apply, detached, wide
from adamas.engines.bookkeeping.uses.general import general
from adamas.errors import UnsupportedError


def linear(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Stands in for `F.linear`."""
    x, w, b = bound(("input", "weight", "bias"), args, kwargs)
    if recorder.clean(x, w, b):
        return _linear(recorder, x, w, b)
    return general(recorder, func, args, kwargs)


def matmul(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Stands in for `x @ w` with a matrix of weights."""
    if not kwargs and recorder.is_tracked(args[1]) and args[1].dim() == 2 and recorder.clean(*args):
        return _linear(recorder, args[0], args[1], None, transposed=True)
    return general(recorder, func, args, kwargs)


def addmm(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Stands in for `addmm(b, x, w)` with a bias of one entry per output."""
    if not kwargs and args[0].shape == args[2].shape[1:] and recorder.clean(args[1], args[2], args[0]):
        return _linear(recorder, args[1], args[2], args[0], transposed=True)
    return general(recorder, func, args, kwargs)


def _linear(recorder: Tracker, x: Tensor, w: Tensor, b: Tensor | None, transposed: bool = False) -> Tensor:
    """Computes `x @ w.T + b`, over any leading axes."""
    if x.dim() == 1:
        raise UnsupportedError(
            f"{recorder.name(w)!r} meets an input without an example axis. Keep the example axis first, or "
            "use engine='loop'."
        )
    place = recorder.place(x)
    if place.axis == x.dim() - 1:
        recorder.refuse_mixing(f"linear sums over the examples ({user_line()})")
    row_map = None if transposed else row_map_of(recorder, w)

    def put(x: Tensor, e: Tensor, y: Tensor | None) -> None:
        if recorder.outside():
            return
        a, e = (by_example(wide(t), place, recorder.n, 1) for t in (x, e))
        bias = None
        if recorder.is_tracked(b):
            assert b is not None
            bias = Dense(e.sum(1) if e.shape[1] > 1 else e[:, 0])
            recorder.add(b, bias, "linear")
        if recorder.is_tracked(w):
            if y is not None:
                y = by_example(y, place, recorder.n, 1)
            record = Outer(a, e, transposed, bias)
            recorder.add(w, measured(recorder, record, w, row_map, y), "linear")

    weight = w.detach().t() if transposed else w.detach()
    keeps = None if row_map is None else lambda x, y: True
    result: Tensor = apply(functions.Linear, x, weight, detached(b), recorder.anchor, put, keeps)
    if (b is None or b.dim() == 1) and not recorder.has_numbers(x):  # all axes but the last stay
        recorder.set_mark(result, place)
    return result
