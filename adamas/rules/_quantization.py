r"""Four-bit codes in buckets of consecutive entries, with a minimum and a maximum per bucket.

.. math::
    u               &= (\Delta - \delta) / 15                            \qquad (1) \\
    Q(x)            &= \lfloor (x - \delta)/u + \xi \rfloor              \qquad (2) \\
    Q^{-1}(c)       &= c\,u + \delta                                     \qquad (3)

with :math:`\xi = 1/2`, or uniform in [0, 1), which makes :math:`Q^{-1}(Q(x))` unbiased.

References:
    Ionut-Vlad Modoranu, Mher Safaryan, Grigory Malinovsky, Eldar Kurtic, Thomas Robert, Peter Richtárik, Dan
    Alistarh. "MicroAdam: Accurate Adaptive Optimization with Low Space Overhead and Provable Convergence."
    NeurIPS 2024. arXiv:2405.15593.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

# The largest code of four bits.
_LARGEST = 15


class Buckets(NamedTuple):
    """Consecutive buckets: one row of codes and one pair of float32 bounds each.

    A byte of a row holds an entry of the bucket's first half in its high bits and the entry half a
    bucket later in its low bits, so that both halves are read and written as whole vectors.
    """

    codes: Tensor  # (buckets, half of the size, rounded up), uint8
    low: Tensor  # (buckets, 1), float32
    high: Tensor  # (buckets, 1), float32
    size: int

    @staticmethod
    def zeros(entries: int, size: int, device: torch.device) -> dict[str, Any]:
        """Returns the tensors of `entries` zeros; `Buckets(**tensors)` reads and writes them."""
        size = max(min(size, entries), 1)
        rows = -(-entries // size)
        return {
            "codes": torch.zeros(rows, (size + 1) // 2, dtype=torch.uint8, device=device),
            "low": torch.zeros(rows, 1, device=device),
            "high": torch.zeros(rows, 1, device=device),
            "size": size,
        }

    def of(self, start: int, stop: int) -> "Buckets":
        """Returns the buckets of the entries from `start`, where a bucket begins, to `stop`."""
        rows = slice(start // self.size, -(-stop // self.size))
        return Buckets(self.codes[rows], self.low[rows], self.high[rows], self.size)

    def add_to(self, x: Tensor, out: Tensor, work: Tensor) -> None:
        """Writes `x` plus the values of the buckets to `out`; `out` and `work` have room for all buckets."""
        half, rows = self.codes.shape[1], self.codes.shape[0]
        entries = rows * self.size
        codes = work[:entries].view(rows, self.size)
        codes[:, :half] = self.codes >> 4
        codes[:, half:] = self.codes[:, : self.size - half] & _LARGEST
        low, unit = self.low.to(out.dtype), self._unit(out.dtype)
        codes.mul_(unit).add_(low)  # (3); a fused operation would round differently on some machines
        torch.add(x, work[: x.numel()], out=out[: x.numel()])

    def store(self, x: Tensor, entries: int, shift: Tensor | None, work: Tensor) -> None:
        """Quantizes the first `entries` of `x`, which has room for all buckets and is overwritten.

        Args:
            x: The values.
            entries: Number of values to quantize.
            shift: xi for each entry; None means 1/2.
            work: Buffer of an int16 per entry.
        """
        half, rows = self.codes.shape[1], self.codes.shape[0]
        x = x[: rows * self.size]
        if entries < len(x):
            x[entries:] = x[entries - 1]  # padding that keeps the bounds of the last bucket
        values = x.view(rows, self.size)
        self.low.copy_(values.amin(1, keepdim=True))
        self.high.copy_(values.amax(1, keepdim=True))
        unit = self._unit(x.dtype)
        unit.masked_fill_(unit < torch.finfo(x.dtype).tiny, math.inf)  # gives code 0, which means `low`
        values.sub_(self.low).div_(unit)
        if shift is None:
            values.add_(0.5)
        else:
            x[:entries] += shift
        codes = work[: len(x)].view(rows, self.size)
        codes.copy_(values)  # (2); truncation rounds down, since no value is negative; NaN becomes 0
        if shift is not None or x.dtype == torch.float64:
            codes.clamp_(0, _LARGEST)  # float32 bounds need not enclose float64 values
        pairs, second = codes[:, :half], codes[:, half:]
        pairs.mul_(_LARGEST + 1)[:, : self.size - half] += second
        self.codes.copy_(pairs)

    def _unit(self, dtype: torch.dtype) -> Tensor:
        """Computes (1)."""
        return (self.high.to(dtype) - self.low.to(dtype)) / _LARGEST
