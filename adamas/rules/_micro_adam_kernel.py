"""A step of MicroAdam in one pass over memory, compiled by Numba where it works.

For 4-bit errors with rounding to nearest, the scope "block" and float32 on a CPU. The operations are those of
`adamas.rules._micro_adam_step` in the same order, each rounded to float32. So the results are equal bit for
bit, and a state continues with or without Numba. Blocks are independent and shared among threads, whose
number does not change the results.
"""

import functools
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adamas._numerics.compiled import Array, compiled, numba
from adamas._numerics.threads import share_out

# Bits of float32 numbers. Bits of magnitudes, read as integers, sort like the magnitudes.
_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITY = np.int32(0x7F800000)
_NAN = np.int32(0x7F800001)  # stands for every NaN, as the largest magnitude
_MINUS_INFINITY = np.int32(-0x7F800001)  # its key, see `_key`

_TINY = np.finfo(np.float32).tiny
_INF = np.float32(np.inf)
_HALF = np.float32(0.5)
_LARGEST = np.float32(15)
_ZERO = np.float32(0)

# Fewest blocks for which another thread pays off: they take longer than waking it.
_LEAST_SHARE = 4


@compiled
def _decode(codes: Array, low: np.float32, high: np.float32, g: Array, out: Array) -> None:
    """Writes the values of a bucket plus `g`, which may be shorter, to `out`."""
    unit = (high - low) / _LARGEST
    n, half = len(g), len(codes)
    first = min(n, half)
    for i in range(first):
        out[i] = (np.float32(codes[i] >> 4) * unit + low) + g[i]
    upper, g = out[first:], g[first:]
    for i in range(n - first):
        upper[i] = (np.float32(codes[i] & 15) * unit + low) + g[i]


@compiled
def _key(bits: np.int32) -> np.int32:
    """Maps the bits of floats to integers that sort like the floats; its own inverse."""
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & _MAGNITUDE))


@compiled
def _encode(values: Array, bits: Array, codes: Array, two: Array, two_bits: Array) -> None:
    """Writes the codes of a bucket, and its bounds to `two`, whose memory `two_bits` shares."""
    least = largest = _key(bits[0])
    for i in range(len(bits)):
        key = _key(bits[i])
        least = min(least, key)
        largest = max(largest, key)
    if largest > _INFINITY or least < _MINUS_INFINITY:
        two[:] = np.nan
    else:
        two_bits[0], two_bits[1] = _key(least), _key(largest)
    low = two[0]
    unit = (two[1] - low) / _LARGEST
    if not (_TINY <= unit < _INF):
        codes[:] = 0
        return
    half = len(codes)
    pairs = len(values) - half
    upper = values[half:]
    for i in range(pairs):
        a = np.int32((values[i] - low) / unit + _HALF)
        b = np.int32((upper[i] - low) / unit + _HALF)
        codes[i] = np.uint8((a << 4) | b)
    if pairs < half:
        codes[pairs] = np.uint8(np.int32((values[pairs] - low) / unit + _HALF) << 4)


@compiled
def _bfloat16(bits: np.int32) -> np.uint16:
    """Returns the bits of the nearest bfloat16 number; ties go to the even one."""
    wide = np.int64(bits) & 0xFFFFFFFF
    if (wide & _MAGNITUDE) > _INFINITY:
        return np.uint16(0x7FC0)
    return np.uint16((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16)


@compiled
def _candidates(bits: Array, least: np.int32, out: Array, flags: Array, words: Array) -> int:
    """Writes the places of magnitudes of at least `least` to `out`, in order; returns their number.

    `flags` has a byte per entry; `words` is the same memory in words of 8 bytes, most of which are 0.
    """
    n = len(bits)
    for i in range(n):
        flags[i] = (bits[i] & _MAGNITUDE) >= least
    flags[n:] = 0
    count = 0
    for word in range(len(words)):
        if words[word] != 0:
            for i in range(8 * word, 8 * word + 8):
                if flags[i]:
                    out[count] = i
                    count += 1
    return count


@compiled
def _kth_largest(keys: Array, n: int, k: int, bins: Array) -> tuple[np.int32, int]:
    """Returns the k-th largest of n keys, and how many equal keys are among the k; overwrites the keys."""
    for shift in (24, 16, 8, 0):
        bins[:] = 0
        for i in range(n):
            bins[(keys[i] >> shift) & 255] += 1
        digit = 255
        while bins[digit] < k:
            k -= bins[digit]
            digit -= 1
        kept = 0
        for i in range(n):
            if (keys[i] >> shift) & 255 == digit:
                keys[kept] = keys[i]
                kept += 1
        n = kept
    return keys[0], k


@compiled
def _select(
    bits: Array,
    threshold: np.int32,
    k: int,
    places: Array,
    keys: Array,
    bins: Array,
    flags: Array,
    words: Array,
) -> np.int32:
    """Moves the places of the k largest magnitudes to the front of `places`, in order; returns the k-th.

    Ties go to the first entry. If at least k entries pass the threshold, only those are compared.
    """
    n = _candidates(bits, min(threshold, _NAN), places, flags, words)
    if n < k:
        n = len(bits)
        for i in range(n):
            places[i] = i
    for i in range(n):
        keys[i] = min(bits[places[i]] & _MAGNITUDE, _NAN)
    kth: np.int32
    kth, ties = _kth_largest(keys, n, k, bins)
    count = 0
    for i in range(n):
        place = places[i]
        key = min(bits[place] & _MAGNITUDE, _NAN)
        tie = key == kth and ties > 0
        if key > kth or tie:
            places[count] = place
            count += 1
            ties -= tie
    return kth


@compiled
def _step_blocks(
    theta: Array, g: Array, codes: Array, low: Array, high: Array, indices: Array, values: Array,
    threshold: Array, b1: Array, b2: Array, window: int, size: int, length: int, k: int, last: int, row: int,
    margin: np.float32, decay: np.float32, eps: np.float32, rate: np.float32, start: int, stop: int,
) -> None:  # fmt: skip
    """Runs `step` for the blocks from `start` to `stop`."""
    room = -(-length // size) * size
    a, z1, z2 = np.empty(room, np.float32), np.zeros(length, np.float32), np.zeros(length, np.float32)
    places, keys, bins = np.empty(length, np.int32), np.empty(length, np.int32), np.empty(256, np.int32)
    words = np.empty(-(-length // 8), np.int64)
    flags = words.view(np.uint8)
    v, two = np.empty(k, np.float32), np.empty(2, np.float32)
    bits, v_bits, two_bits = a.view(np.int32), v.view(np.int32), two.view(np.int32)
    n, blocks = len(theta), len(threshold)
    for block in range(start, stop):
        begin = block * length
        end = min(begin + length, n)
        entries = end - begin
        number = k if block < blocks - 1 else last
        slot = block * window * k
        bucket = begin // size
        buckets = -(-entries // size)
        for i in range(buckets):  # (1)
            x = g[begin + i * size : min(begin + (i + 1) * size, end)]
            _decode(codes[bucket + i], low[bucket + i], high[bucket + i], x, a[i * size :])

        two[0] = threshold[block]
        two_bits[0] = _select(bits[:entries], two_bits[0], number, places, keys, bins, flags, words)
        threshold[block] = margin * two[0]
        newest = slot + row * number
        for j in range(number):  # (2)
            place = places[j]
            indices[newest + j] = place
            values[newest + j] = _bfloat16(bits[place])
            a[place] = _ZERO

        a[entries : buckets * size] = a[entries - 1]  # padding that keeps the bounds of the last bucket
        for i in range(buckets):  # (3)
            part = slice(i * size, (i + 1) * size)
            _encode(a[part], bits[part], codes[bucket + i], two, two_bits)
            low[bucket + i], high[bucket + i] = two

        for r in range(len(b1)):  # (4)
            at = slot + r * number
            outside = False
            for j in range(number):
                v_bits[j] = np.int32(values[at + j]) << 16
                outside |= indices[at + j] < 0 or indices[at + j] >= entries
            if outside:
                raise RuntimeError("Expected a state whose indices lie in their blocks: it was damaged.")
            for j in range(number):
                place = indices[at + j]
                z1[place] += v[j] * b1[r]
                z2[place] += (v[j] * v[j]) * b2[r]
        moved, first, second = theta[begin:end], z1[:entries], z2[:entries]
        for i in range(entries):  # (5) and (6); visiting all entries is faster than gathering
            moved[i] = moved[i] * decay - first[i] / (np.sqrt(second[i]) + eps) * rate
        first[:] = _ZERO
        second[:] = _ZERO


@functools.cache
def available() -> bool:
    """Tells whether the kernel works; the first call compiles it or reads it from Numba's cache."""
    try:
        f, i = numba.float32, numba.int64
        state = (numba.uint8[:, ::1], f[::1], f[::1], numba.int16[::1], numba.uint16[::1], f[::1])
        _step_blocks.compile((f[::1], f[::1], *state, f[::1], f[::1], *[i] * 6, *[f] * 4, i, i))
    except Exception:  # whatever it is, torch can make the step
        return False
    return True


def step(
    theta: Tensor,
    g: Tensor,
    state: dict[str, Any],
    weights: tuple[Array, Array],
    length: int,
    selected: tuple[int, int],
    margin: float,
    decay: float,
    eps: float,
    rate: float,
) -> "list[Future[None]]":
    """Computes (1) to (6) of `adamas.rules.micro_adam` for a flat tensor.

    The calling thread does its share and returns those of the other threads without waiting.

    Args:
        theta: Parameters.
        g: Gradient.
        state: State of the parameter, with the number of this step.
        weights: Weights of the window rows in (4).
        length: Entries of a block; buckets do not cross its borders.
        selected: How many entries are selected in each block, and in the last block.
        margin: Factor from the smallest selected magnitude to the next threshold.
        decay: Factor of theta.
        eps: Added to the root of the second sum.
        rate: Factor of the quotient of the two.
    """
    window, step = len(weights[0]), state["step"]
    filled = min(step, window)
    arguments = (
        theta.numpy(),
        g.numpy(),
        state["codes"].numpy(),
        state["low"].view(-1).numpy(),
        state["high"].view(-1).numpy(),
        state["indices"].numpy(),
        state["values"].view(torch.int16).numpy().view(np.uint16),
        state["threshold"].numpy(),
        *(w[:filled].astype(np.float32) for w in weights),
        *(window, state["size"], length, *selected, (step - 1) % window),
        *(np.float32(x) for x in (margin, decay, eps, rate)),
    )
    return share_out([(_step_blocks, arguments, len(state["threshold"]))], _LEAST_SHARE)
