"""The stand-in for an embedding."""

from typing import Any

from torch import Tensor

from adamas.engines.bookkeeping import functions
from adamas.engines.bookkeeping.arguments import bound
from adamas.engines.bookkeeping.lookup import Lookup
from adamas.engines.bookkeeping.places import by_example
from adamas.engines.bookkeeping.tracking import Tracker
from adamas.engines.bookkeeping.uses.common import apply, wide
from adamas.engines.bookkeeping.uses.general import general
from adamas.errors import UnsupportedError


def embedding(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Stands in for a look-up of rows."""
    names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    indices, w, padding, max_norm, _, by_frequency, _ = bound(names, args, kwargs)
    if max_norm is not None or by_frequency:
        option = "max_norm" if max_norm is not None else "scale_grad_by_freq"
        raise UnsupportedError(
            f"{recorder.name(w)!r} is an embedding with {option}, which makes an example's gradient depend "
            f"on the other examples. Make it without {option}."
        )
    if not recorder.is_tracked(w):
        return general(recorder, func, args, kwargs)
    padding = padding + w.shape[0] if padding is not None and padding < 0 else padding
    place = recorder.place(indices)

    def put(indices: Tensor, e: Tensor) -> None:
        if not recorder.outside():
            rows = by_example(indices.unsqueeze(-1), place, recorder.n, 1).squeeze(2)
            gradients = by_example(wide(e), place, recorder.n, 1)
            recorder.add(w, Lookup(rows, gradients, w.shape[0], padding), "embedding")

    return apply(functions.Embed, w.detach(), indices, recorder.anchor, put)
