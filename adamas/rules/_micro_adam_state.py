"""State of MicroAdam for one parameter: how it is created, laid out in blocks, and checked."""

import math
from typing import Any

import torch
from torch import Tensor

from adamas._numerics.sums import accumulation_dtype
from adamas.rules._quantization import Buckets
from adamas.rules.base import Options, State

BLOCK = 1 << 15
"""Entries of a block, within which the scope "block" selects; an int16 can index them."""


def started(state: State, p: Tensor, group: Options) -> dict[str, Any]:
    """Returns the state of a parameter, and fills it at the first step."""
    if state:
        return state
    n, window, device = p.numel(), group["window"], p.device
    dtype = accumulation_dtype(p.dtype)
    state["step"] = 0
    if group["bits"] is None:
        state["error"] = torch.zeros(n, dtype=dtype, device=device)
    else:
        state.update(Buckets.zeros(n, group["bucket_size"], device))
    number, kept = torch.int32, dtype if group["bits"] is None else torch.bfloat16
    slots = 0
    if group["scope"] == "global":
        state["counts"] = torch.zeros(window, dtype=torch.int64)
    else:
        rows = layout(n, group)[1]
        if group["scope"] == "block":
            number = torch.int16
        k, last = selected_counts(n, group)
        slots = window * (k * (rows - 1) + last) if n else 0
        state["threshold"] = torch.full((rows,), math.inf, device=device)
    state["indices"] = torch.zeros(slots, dtype=number, device=device)
    state["values"] = torch.zeros(slots, dtype=kept, device=device)
    return state


def layout(n: int, group: Options) -> tuple[int, int]:
    """Returns the length of a block and the number of blocks of a tensor; the last block may be shorter."""
    length = max(min(n, BLOCK) if group["scope"] == "block" else n, 1)
    return length, -(-n // length)


def selected_counts(n: int, group: Options) -> tuple[int, int]:
    """Returns how many entries are selected in each block, and in the last block."""
    length, rows = layout(n, group)
    last = n - (rows - 1) * length
    return math.ceil(group["density"] * length), math.ceil(group["density"] * last)


def fits(state: State, n: int, group: Options) -> bool:
    """Tells whether a state has the sizes for n entries; compiled code does not check where it writes."""
    rows, buckets = layout(n, group)[1], -(-n // state["size"])
    k, last = selected_counts(n, group)
    slots = group["window"] * (k * (rows - 1) + last)
    return bool(
        state["codes"].shape == (buckets, (state["size"] + 1) // 2)
        and state["low"].numel() == state["high"].numel() == buckets
        and state["threshold"].numel() == rows
        and state["indices"].numel() == state["values"].numel() == slots
        and state["values"].dtype == torch.bfloat16
    )


def error_buckets(state: State) -> Buckets:
    """Returns the quantized error of a state."""
    return Buckets(state["codes"], state["low"], state["high"], state["size"])
