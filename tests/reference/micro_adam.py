"""DP-MicroAdam (Hudisteanu et al., 2025) in NumPy, with the line numbers of Algorithms 1 and 2.

Row r of the window holds the step with (t - 1) mod m = r, so that the newest row has the exponent 0. The
printed line 4 of Algorithm 2 counts rows from 1 and gives the newest one m - 1. The paper takes min and max
of a whole vector. Here each bucket of consecutive entries has its own.
"""

import math
from collections.abc import Sequence

import numpy as np


def bfloat16(x: np.ndarray) -> np.ndarray:
    """Rounds to the nearest bfloat16 numbers, ties to even: the upper half of a float32."""
    bits = np.asarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


def quantize(
    x: np.ndarray, bits: int, bucket_size: int, float32_statistics: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the codes of a vector, and the values that they decode to."""
    codes, decoded = np.zeros(x.size, dtype=np.int64), np.zeros(x.size)
    for start in range(0, x.size, bucket_size):
        bucket = slice(start, start + bucket_size)
        low, high = x[bucket].min(), x[bucket].max()  # Algorithm 1, line 10
        if float32_statistics:
            low, high = float(np.float32(low)), float(np.float32(high))
        u = (high - low) / (2**bits - 1)  # Q, line 2
        if u > 0:
            rounded = np.floor((x[bucket] - low) / u + 0.5)  # Q, line 3
            codes[bucket] = np.clip(rounded, 0, 2**bits - 1)
        decoded[bucket] = codes[bucket] * u + low  # inverse of Q, line 3
    return codes, decoded


def selections(sizes: Sequence[int], scope: str, density: float, block_size: int) -> list[tuple[slice, int]]:
    """Returns the ranges of the flat parameters that each select their k largest entries, and k."""
    if scope == "global":
        return [(slice(0, sum(sizes)), math.ceil(density * sum(sizes)))]
    result, start = [], 0
    for size in sizes:
        length = size if scope == "tensor" else block_size
        for first in range(start, start + size, length):
            last = min(first + length, start + size)
            result.append((slice(first, last), math.ceil(density * (last - first))))
        start += size
    return result


def micro_adam(
    thetas: Sequence[np.ndarray],
    gradients: Sequence[Sequence[np.ndarray]],
    lr: Sequence[float],
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    lam: float = 0.0,
    density: float = 0.01,
    window: int = 10,
    bits: int | None = None,
    bucket_size: int = 512,
    scope: str = "tensor",
    block_size: int = 4096,
    window_correction: bool = False,
    bfloat16_values: bool = False,
    float32_statistics: bool = False,
) -> list[tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]]:
    """Returns theta_t, the codes of the error (all 0 without bits) and the error, for t = 1, ..., T.

    Each is a list over tensors. `thetas` has a flat vector per tensor, and `gradients[t - 1]` the private
    gradients of step t.
    """
    sizes = [theta.size for theta in thetas]
    splits = np.cumsum(sizes)[:-1]
    theta = np.concatenate([np.asarray(x, dtype=np.float64) for x in thetas])
    parts = selections(sizes, scope, density, block_size)
    k = sum(count for _, count in parts)
    indices, values = np.zeros((window, k), dtype=np.int64), np.zeros((window, k))
    e, row = np.zeros(theta.size), 0
    steps = []
    for t, (gtil, eta) in enumerate(zip(gradients, lr, strict=True), start=1):
        a = np.concatenate(gtil) + e  # 6
        chosen = np.concatenate(
            [part.start + np.argsort(-np.abs(a[part]), kind="stable")[:count] for part, count in parts]
        )  # 7
        indices[row], values[row] = chosen, bfloat16(a[chosen]) if bfloat16_values else a[chosen]  # 8
        a[chosen] = 0  # 9
        row = (row + 1) % window  # 15
        codes = [np.zeros(size, dtype=np.int64) for size in sizes]
        e = a
        if bits is not None:
            tensors = np.split(a, splits)
            pairs = [quantize(x, bits, bucket_size, float32_statistics) for x in tensors]  # 10, 11
            codes, e = [c for c, _ in pairs], np.concatenate([x for _, x in pairs])

        z1, z2 = np.zeros(theta.size), np.zeros(theta.size)  # AdamStats, line 2
        for i in range(min(t, window)):  # line 3
            r = (t - 1 - i) % window  # line 4
            z1[indices[i]] += beta1**r * values[i]  # line 5
            z2[indices[i]] += beta2**r * values[i] ** 2
        terms = min(t, window) if window_correction else t
        mhat = (1 - beta1) * z1 / (1 - beta1**terms)  # 12; AdamStats, line 6
        vhat = (1 - beta2) * z2 / (1 - beta2**terms)  # 13
        theta = theta - eta * lam * theta - eta * mhat / (eps + np.sqrt(vhat))  # 14
        steps.append((np.split(theta, splits), codes, np.split(e, splits)))
    return steps
