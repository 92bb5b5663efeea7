"""Stand-ins for convolutions."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from adamas.engines.bookkeeping import functions
from adamas.engines.bookkeeping.arguments import bound
from adamas.engines.bookkeeping.convolution import Convolution
from adamas.engines.bookkeeping.frames import Framed
from adamas.engines.bookkeeping.measured import measured, row_map_of
from adamas.engines.bookkeeping.places import FIRST, by_example
from adamas.engines.bookkeeping.records import Dense
from adamas.engines.bookkeeping.tracking import Tracker
from adamas.engines.bookkeeping.uses.common import apply, detached, wide
from adamas.engines.bookkeeping.uses.general import general
from adamas.errors import UnsupportedError

# The number of axes that each convolution runs over.
CONVOLUTIONS: dict[Any, int] = {
    F.conv1d: 1,
    F.conv2d: 2,
    F.conv3d: 3,
    torch.conv1d: 1,
    torch.conv2d: 2,
    torch.conv3d: 3,
}


def convolution(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Stands in for a convolution over one to three axes."""
    axes = CONVOLUTIONS[func]
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    x, w, b, stride, padding, dilation, groups = bound(names, args, kwargs)
    if not recorder.clean(x, w, b) or x.dim() != axes + 2:
        return general(recorder, func, args, kwargs)
    stride, dilation = _each(stride, axes, 1), _each(dilation, axes, 1)
    groups = 1 if groups is None else groups
    place = recorder.place(x)
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
        if any(t % 2 for t in total):
            x = F.pad(x, [side for t in reversed(total) for side in (t // 2, t - t // 2)])
            total = [0] * axes
        padding = [t // 2 for t in total]
    padding = [0] * axes if padding == "valid" else _each(padding, axes, 0)
    if place.axis:
        raise UnsupportedError(
            f"The input of the convolution of {recorder.names_in(w, b)} has its examples on another axis "
            "than the first. Put the example axis first, or use engine='vmap'."
        )
    single = place == FIRST  # one image for each example
    row_map = row_map_of(recorder, w) if groups == 1 and single else None

    def put(x: Tensor, e: Tensor, y: Tensor | None) -> None:
        if recorder.outside():
            return
        x, e = wide(x), wide(e)
        if recorder.is_tracked(b):
            gradients = e.flatten(2).sum(2)
            if not single:
                gradients = by_example(gradients, place, recorder.n, 1).sum(1)
            recorder.add(b, Dense(gradients), "convolution")
        if not recorder.is_tracked(w):
            return
        if single:
            record = Convolution(x, e, w.shape, *settings)
            recorder.add(w, measured(recorder, record, w, row_map, y), "convolution")
        else:
            images = by_example(x, place, recorder.n, x.dim() - 1)
            gradients = by_example(e, place, recorder.n, e.dim() - 1)
            recorder.add(w, Framed(images, gradients, w.shape, settings), "convolution")

    settings = (stride, padding, dilation, groups)
    keeps = None if row_map is None else lambda x, y: Convolution(x, y, w.shape, *settings).gram_pays()
    arguments = (x, w.detach(), detached(b), recorder.anchor, settings, put, keeps)
    return apply(functions.Convolve, *arguments)


def _each(value: Any, axes: int, default: int) -> list[int]:
    if value is None:
        value = default
    return [value] * axes if isinstance(value, int) else list(value) * (axes if len(value) == 1 else 1)
