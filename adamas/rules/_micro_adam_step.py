"""A step of MicroAdam in torch: equations (1) to (6) of `adamas.rules.micro_adam`.

It serves every option and device. `adamas.rules._micro_adam_kernel` is the compiled form of the common case.
"""

import functools
import math

import numpy as np
import torch
from torch import Tensor

from adamas._numerics.sums import accumulation_dtype
from adamas.rules._largest import find_largest
from adamas.rules._micro_adam_state import error_buckets, layout, selected_counts
from adamas.rules.base import Options, State

# Blocks processed together: enough to make the calls cheap, few enough to stay in the cache.
_TOGETHER = 16


def step_blocks(
    theta: Tensor, g: Tensor, group: Options, state: State, shifts: np.random.Generator | None
) -> None:
    """Computes (1) to (6) for a tensor, a few blocks at a time."""
    n, m = theta.numel(), group["window"]
    length, rows = layout(n, group)
    k, last = selected_counts(n, group)
    newest = (state["step"] - 1) % m
    together = _TOGETHER if length % state.get("size", 1) == 0 else rows
    a, work, codes = scratch_buffers(theta, min(together, rows) * length, state)
    b1, b2 = (row_weights(b, state["step"], m).to(a)[:, None] for b in group["betas"])
    for row in range(0, rows, together):
        stop_row = min(row + together, rows)
        start, stop = row * length, min(stop_row * length, n)
        blocks, entries = stop_row - row, stop - start
        # Blocks with k selected entries; the last block of the tensor may have fewer.
        whole = blocks - (stop_row == rows and last < k)
        slots = m * k
        middle = slots * (row + whole)
        end = middle + (blocks - whole) * m * last
        indices, values = (
            [state[name][slots * row : middle].view(whole, m, k), state[name][middle:end].view(-1, m, last)]
            for name in ("indices", "values")
        )

        accumulate(g, state, start, stop, a, work)  # (1)
        sums, squares = (t[: blocks * length].view(blocks, length) for t in (a, work))
        last_k = last if whole < blocks else k
        chosen = find_largest(sums, entries, k, last_k, state["threshold"][row:stop_row], squares)
        selected = sums.gather(1, chosen)  # (2)
        sums.scatter_(1, chosen, 0.0)
        for stored, new in ((indices, chosen), (values, selected)):
            stored[0][:, newest] = new[:whole]
            if whole < blocks:
                stored[1][:, newest] = new[whole:, :last]
        _feed_back(a, state, start, stop, shifts, codes)  # (3)

        if whole == blocks:
            places, v = indices[0].long(), values[0].to(a.dtype)
        else:  # pad the rows of the last block with zeros at entry 0
            places = chosen.new_zeros(blocks, m, k)
            v = a.new_zeros(blocks, m, k)
            for filled, stored in ((places, indices), (v, values)):
                filled[:whole] = stored[0]
                filled[whole:, :, :last] = stored[1]
        first, second = v * b1, v.square().mul_(b2)
        flat = (blocks, slots)
        terms = places.view(flat), first.view(flat), second.view(flat)
        _move(theta[start:stop], *terms, sums, squares, group, state)


def step_selected(
    theta: Tensor,
    g: Tensor,
    chosen: Tensor,
    group: Options,
    state: State,
    shifts: np.random.Generator | None,
) -> None:
    """Computes (1) to (6) for a tensor whose selected entries are given; window rows differ in length."""
    n, m = theta.numel(), group["window"]
    a, work, codes = scratch_buffers(theta, n, state)
    accumulate(g, state, 0, n, a, work)  # (1)
    counts = state["counts"].tolist()
    newest = (state["step"] - 1) % m
    for name, new in (("indices", chosen), ("values", a[chosen])):  # (2)
        stored = list(torch.split(state[name], counts))
        stored[newest] = new.to(state[name].dtype)
        state[name] = torch.cat(stored)
    a[chosen] = 0.0
    state["counts"][newest] = len(chosen)
    _feed_back(a, state, 0, n, shifts, codes)  # (3)
    v = state["values"].to(a.dtype)
    b1, b2 = (
        row_weights(b, state["step"], m).to(a.dtype).repeat_interleave(state["counts"]).to(v.device)
        for b in group["betas"]
    )
    places, z1, z2 = state["indices"].long()[None], a[None, :n], work[None, :n]
    _move(theta, places, (v * b1)[None], (v.square() * b2)[None], z1, z2, group, state)


def scratch_buffers(p: Tensor, entries: int, state: State) -> tuple[Tensor, Tensor, Tensor]:
    """Allocates two buffers for sums and one for codes, of `entries` rounded up to whole buckets."""
    size = state.get("size", 1)
    entries = -(-entries // size) * size
    a, work = torch.empty(2, entries, dtype=accumulation_dtype(p.dtype), device=p.device)
    return a, work, torch.empty(entries if "size" in state else 0, dtype=torch.int16, device=p.device)


def accumulate(g: Tensor, state: State, start: int, stop: int, out: Tensor, work: Tensor) -> None:
    """Computes (1) for the entries from `start` to `stop`."""
    if "error" in state:
        torch.add(state["error"][start:stop], g[start:stop], out=out[: stop - start])
    else:
        error_buckets(state).of(start, stop).add_to(g[start:stop].to(out.dtype), out, work)


def _feed_back(
    a: Tensor,
    state: State,
    start: int,
    stop: int,
    shifts: np.random.Generator | None,
    codes: Tensor,
) -> None:
    """Computes (3) for the entries from `start` to `stop`; overwrites `a`."""
    if "error" in state:
        state["error"][start:stop] = a[: stop - start]
        return
    shift = None
    if shifts is not None:
        shift = torch.from_numpy(shifts.random(stop - start)).to(device=a.device, dtype=a.dtype)
    error_buckets(state).of(start, stop).store(a, stop - start, shift, codes)


def _move(
    theta: Tensor,
    places: Tensor,
    first: Tensor,
    second: Tensor,
    z1: Tensor,
    z2: Tensor,
    group: Options,
    state: State,
) -> None:
    """Computes (4) to (6). Each row of weighted values belongs at `places` of the same row of z1 and z2."""
    eps, rate = step_constants(group, state["step"], z2.dtype)
    z1.zero_().scatter_add_(1, places, first)  # (4)
    z2.zero_().scatter_add_(1, places, second)
    root = _sqrt(z2.gather(1, places))
    z1.scatter_(1, places, z1.gather(1, places).div_(root.add_(eps)).mul_(rate))  # (5)
    if group["weight_decay"]:
        theta.mul_(decay_factor(group))
    theta.sub_(z1.view(-1)[: theta.numel()])  # (6)


def step_constants(group: Options, t: int, dtype: torch.dtype) -> tuple[float, float]:
    """Returns the eps added to the root of z2, and the factor of z1, with the constants of (5) and (6)."""
    terms = min(t, group["window"]) if group["window_correction"] else t
    c1, c2 = ((1 - b) / (1 - b**terms) for b in group["betas"])
    eps = max(group["eps"] / math.sqrt(c2), torch.finfo(dtype).tiny)  # makes 0/0 a step of 0
    return eps, group["lr"] * c1 / math.sqrt(c2)


def decay_factor(group: Options) -> float:
    """Returns the factor of theta in (6)."""
    lr, weight_decay = group["lr"], group["weight_decay"]
    return float(1 - lr * weight_decay)


@functools.lru_cache(maxsize=8)
def row_weights(decay: float, step: int, window: int) -> Tensor:
    """Returns the weight of each window row in (4); the tensors of a rule share them."""
    return torch.tensor([decay ** ((step - 1 - row) % window) for row in range(window)], dtype=torch.float64)


def _sqrt(x: Tensor) -> Tensor:
    """Takes the root in place; on a CPU, torch takes ten times as long where there are zeros."""
    if x.device.type == "cpu":
        np.sqrt(x.numpy(), out=x.numpy())
        return x
    return x.sqrt_()
