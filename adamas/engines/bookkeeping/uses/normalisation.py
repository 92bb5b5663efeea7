"""Stand-ins for normalisations."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from adamas.engines.bookkeeping import functions
from adamas.engines.bookkeeping.arguments import bound
from adamas.engines.bookkeeping.counts import user_line
from adamas.engines.bookkeeping.places import FIRST, by_example
from adamas.engines.bookkeeping.records import Dense
from adamas.engines.bookkeeping.tracking import Tracker
from adamas.engines.bookkeeping.uses.common import apply, detached, wide
from adamas.engines.bookkeeping.uses.general import general
from adamas.errors import UnsupportedError


def layer_norm(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Stands in for layer normalisation with a weight, a bias or both."""
    x, shape, w, b, eps = bound(("input", "normalized_shape", "weight", "bias", "eps"), args, kwargs)
    if not recorder.clean(x, w, b):
        return general(recorder, func, args, kwargs)
    shape, eps = list(shape), 1e-5 if eps is None else eps
    place = recorder.place(x)
    if torch.is_autocast_enabled(x.device.type):
        x = x.float()
    if place.axis >= x.dim() - len(shape):
        recorder.refuse_mixing(f"layer_norm runs along the examples ({user_line()})")
    first = place.axis == 0 and place.outer == 1 and place.rows is None

    def examples(e: Tensor) -> int:
        return recorder.n if recorder.in_backward and first else 0

    def put(
        normalised: Tensor | None, e: Tensor | None, gw: Tensor | None = None, gb: Tensor | None = None
    ) -> None:
        if recorder.outside():
            return
        if normalised is not None and e is not None:
            parts = [by_example(t, place, recorder.n, len(shape)) for t in (normalised, e)]
            gw, gb = (parts[0] * parts[1]).sum(1), parts[1].sum(1)
        for weight, gradient in ((w, gw), (b, gb)):
            if weight is not None and recorder.is_tracked(weight) and gradient is not None:
                recorder.add(weight, Dense(wide(gradient)), "layer_norm")

    return apply(functions.LayerNorm, x, shape, detached(w), detached(b), eps, recorder.anchor, examples, put)


def group_norm(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Stands in for group normalisation."""
    x, groups, w, b, eps = bound(("input", "num_groups", "weight", "bias", "eps"), args, kwargs)
    if recorder.clean(x, w, b):
        return _group_norm(recorder, x, groups, w, b, 1e-5 if eps is None else eps)
    return general(recorder, func, args, kwargs)


def instance_norm(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Stands in for instance normalisation by the statistics of each example."""
    names = (
        *("input", "running_mean", "running_var", "weight", "bias", "use_input_stats"),
        *("momentum", "eps"),
    )
    x, mean, _, w, b, own, _, eps = bound(names, args, kwargs)
    if mean is None and own is not False and recorder.clean(x, w, b):
        return _group_norm(recorder, x, x.shape[1], w, b, 1e-5 if eps is None else eps)
    return general(recorder, func, args, kwargs)


def _group_norm(
    recorder: Tracker, x: Tensor, groups: int, w: Tensor | None, b: Tensor | None, eps: float
) -> Any:
    """Normalises groups of channels; instance normalisation has a group for each channel."""
    place = recorder.place(x)
    if torch.is_autocast_enabled(x.device.type):
        x = x.float()
    if place.axis:
        raise UnsupportedError(
            f"The input of the group_norm of {recorder.names_in(w, b)} does not have the example axis first. "
            "Put it first, or use engine='vmap'."
        )

    def put(gw: Tensor | None, gb: Tensor | None) -> None:
        if recorder.outside():
            return
        for weight, gradient in ((w, gw), (b, gb)):
            if weight is None or gradient is None or not recorder.is_tracked(weight):
                continue
            if place != FIRST:
                gradient = by_example(gradient, place, recorder.n, 1).sum(1)
            recorder.add(weight, Dense(wide(gradient)), "group_norm")

    return apply(functions.GroupNorm, x, groups, detached(w), detached(b), eps, recorder.anchor, put)


def rms_norm(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Stands in for RMS normalisation: the normalised input, times the weight."""
    x, shape, w, eps = bound(("input", "normalized_shape", "weight", "eps"), args, kwargs)
    if not recorder.clean(x, w):
        return general(recorder, func, args, kwargs)
    with recorder:
        return F.rms_norm(x, shape, None, eps) * w


def batch_norm(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Stands in for batch normalisation with frozen statistics: a product and a sum."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    x, mean, variance, w, b, training, _, eps = bound(names, args, kwargs)
    if training or mean is None:
        raise UnsupportedError(
            f"{recorder.names_in(args, kwargs)} takes part in batch_norm, which mixes the examples of a "
            "batch. Replace it by GroupNorm, LayerNorm or InstanceNorm, or freeze its statistics with "
            ".eval()."
        )
    with recorder:
        y = F.batch_norm(x, mean, variance, None, None, False, 0.0, 1e-5 if eps is None else eps)
        y = y if w is None else y * w.view(1, -1, *[1] * (x.dim() - 2))
        return y if b is None else y + b.view(1, -1, *[1] * (x.dim() - 2))
