"""Swaps a call in which a weight meets data for its stand-in, which leaves a record in the backward."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from adamas.engines.bookkeeping.arguments import tensors_in
from adamas.engines.bookkeeping.bodies import WRITTEN_OUT, seen_body
from adamas.engines.bookkeeping.counts import user_line
from adamas.engines.bookkeeping.proof import Prover
from adamas.engines.bookkeeping.questions import works_in_place
from adamas.engines.bookkeeping.separation import CONSTANT, MARK
from adamas.engines.bookkeeping.tracking import Tracker
from adamas.engines.bookkeeping.uses.convolution import CONVOLUTIONS, convolution
from adamas.engines.bookkeeping.uses.copies import attention, elementwise, expanded, prelu
from adamas.engines.bookkeeping.uses.embedding import embedding
from adamas.engines.bookkeeping.uses.general import general
from adamas.engines.bookkeeping.uses.linear import addmm, linear, matmul
from adamas.engines.bookkeeping.uses.normalisation import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    rms_norm,
)
from adamas.engines.bookkeeping.uses.recurrent import FUSED_RNNS, RNN_CELLS, packed_rnn, rnn, rnn_cell
from adamas.errors import UnsupportedError

StandIn: TypeAlias = Callable[[Tracker, Any, tuple[Any, ...], dict[str, Any]], Any]

_ELEMENTWISE = {
    *("add", "sub", "mul", "div", "true_divide", "rsub", "where", "maximum", "minimum", "lerp", "addcmul"),
    *("pow", "multiply", "subtract", "divide", "__add__", "__radd__", "__sub__", "__rsub__", "__mul__"),
    *("__rmul__", "__truediv__", "__rtruediv__", "__rdiv__", "__pow__", "__rpow__"),
}
_BY_FUNCTION: dict[Any, StandIn] = {
    F.linear: linear,
    F.embedding: embedding,
    F.layer_norm: layer_norm,
    F.group_norm: group_norm,
    F.instance_norm: instance_norm,
    F.rms_norm: rms_norm,
    F.batch_norm: batch_norm,
    F.scaled_dot_product_attention: attention,
    **dict.fromkeys(CONVOLUTIONS, convolution),
    **dict.fromkeys(RNN_CELLS, rnn_cell),
    **dict.fromkeys(FUSED_RNNS, rnn),
}
# Functions that torch, tensors and operators share under one name.
_BY_NAME: dict[str, StandIn] = {
    "addmm": addmm,
    "prelu": prelu,
    **dict.fromkeys(("matmul", "__matmul__", "mm"), matmul),
    **dict.fromkeys(_ELEMENTWISE, elementwise),
}
# Functions that write into data, and those that return the same as a new tensor.
_IN_PLACE: dict[str, Any] = {
    **{f"{name}_": getattr(torch, name) for name in ("add", "sub", "mul", "div", "lerp", "addcmul")},
    **{"__iadd__": torch.add, "__isub__": torch.sub, "__imul__": torch.mul},
    **{"__itruediv__": torch.div, "__idiv__": torch.div},
}
_EXPANSIONS = {"expand", "expand_as", "broadcast_to", "repeat"}


def used(
    recorder: Prover,
    func: Any,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: list[Tensor],
    with_data: bool,
) -> Any:
    """Makes a call in which a weight meets data, or a number of examples."""
    if func in WRITTEN_OUT:
        body = seen_body(func)
        assert body is not None
        with recorder:
            return body(*args, **kwargs)
    if not with_data:
        if name in _EXPANSIONS and recorder.is_tracked(args[0]):
            return expanded(recorder, func, name, args, kwargs)
        recorder.refuse_mixing(f"{name} computes with the number of examples ({user_line()})")
    if func in FUSED_RNNS and not isinstance(args[3], bool):
        return packed_rnn(recorder, FUSED_RNNS[func], *args)
    marks = [recorder.mark(t) for t in tensors if recorder.is_data(t)]
    mixed = next((mark for mark in marks if mark is not None and mark.why is not None), None)
    if mixed is not None:  # refused if it comes to the losses
        result = func(*args, **kwargs)
        for t in tensors_in(result):
            recorder.set_mark(t, mixed)
        return result
    plain = _IN_PLACE.get(name)
    if plain is not None and recorder.is_data(args[0]):
        with recorder:
            out = plain(args[0].clone(), *args[1:], **kwargs)
            return args[0].copy_(out)
    if works_in_place(name):
        raise UnsupportedError(
            f"{recorder.names_in(args, kwargs)} takes part in {name}, which works in place. Use the "
            "function that returns a new tensor."
        )
    stand_in = _BY_FUNCTION.get(func) or _BY_NAME.get(name, general)
    result = stand_in(recorder, func, args, kwargs)
    if isinstance(result, Tensor):
        mark = result.__dict__.get(MARK)
        if mark is None or mark.owner is not recorder.unit:
            recorder.prove(func, name, args, kwargs, result, tensors)
    return result


def weights_alone(recorder: Prover, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Makes a call on weights and constants alone; autograd keeps it, and its result is followed."""
    result = func(*args, **kwargs)
    given = tensors_in((args, kwargs))
    for t in (*tensors_in(result), *tensors_in(args[:1])):
        if t.requires_grad:
            recorder.tracked[id(t)] = t
        elif not any(t is one for one in given):  # those are the user's
            t.__dict__.setdefault(MARK, CONSTANT)
    return result
