"""Keyed digests of tensors, at the speed of memory.

Noise with a given seed must not be drawn twice for different sums: two such releases would show how the sums
differ. A run that continues a checkpoint compares the digest of each sum with that in the journal, and draws
other noise if they differ (`adamas.accounting.spending`). A digest has two parts:

- NH (Black, Halevi, Krawczyk, Krovetz and Rogaway 1999) makes two 64-bit sums of each block of 1,024 words,
  with a key from the seed for each of them. Any two different blocks agree in both with probability at most
  2^-64, over the choice of the key.
- BLAKE2b with a key from the seed turns these sums into 16 bytes. Without the seed they look like random
  bits, and with it the noise can be removed anyway. So a digest may be written to a file.
"""

import hashlib
import struct
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from adamas._numerics.compiled import Array, compiled, numba
from adamas._streams import Seed

SIZE = 16
"""Bytes of a digest."""

_HALF = 512  # words of half a block
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class KeyedDigest:
    """Computes digests under the key of a seed.

    Example:
        >>> digest = KeyedDigest(Seed(1))
        >>> a, b = torch.zeros(3), torch.tensor([0.0, 0.0, -0.0])
        >>> digest([a, 1.0]) == digest([a.clone(), 1.0]), digest([a, 1.0]) == digest([b, 1.0])
        (True, False)
    """

    def __init__(self, seed: Seed) -> None:
        words = seed.words("digest of a sum", count=4 * _HALF + 8)
        self._keys = words[: 4 * _HALF].astype(np.uint32).reshape(4, _HALF)
        self._last = words[4 * _HALF :].tobytes()

    def __call__(self, values: Iterable[Tensor | float]) -> bytes:
        """Returns the digest of tensors and numbers in order: it covers their bits, shapes and types."""
        result = hashlib.blake2b(key=self._last, digest_size=SIZE)
        for value in values:
            if isinstance(value, Tensor):
                result.update(repr((tuple(value.shape), str(value.dtype))).encode())
                result.update(self._sums(_words(value)).tobytes())
            else:
                result.update(b"number" + struct.pack("<d", value))
        return result.digest()

    def _sums(self, words: Array) -> Array:
        blocks = -(-len(words) // (2 * _HALF))
        whole = len(words) // (2 * _HALF)
        sums = np.zeros((blocks, 2), dtype=np.uint64)
        add = _add if numba is not None else _add_by_numpy
        add(words[: whole * 2 * _HALF].reshape(whole, 2, _HALF), self._keys, sums)
        if blocks > whole:
            last = np.zeros((1, 2, _HALF), dtype=np.uint32)
            last.reshape(-1)[: len(words) - whole * 2 * _HALF] = words[whole * 2 * _HALF :]
            add(last, self._keys, sums[whole:])
        return sums


def _words(value: Tensor) -> Array:
    """Returns the bits of a tensor as 32-bit words, padded with zeros."""
    flat = value.detach().contiguous().reshape(-1).cpu()
    data: Array = flat.view(_INTEGERS[flat.element_size()]).numpy().view(np.uint8)
    if len(data) % 4:
        data = np.concatenate([data, np.zeros(-len(data) % 4, dtype=np.uint8)])
    return data.view(np.uint32)


@compiled
def _add(blocks: Array, keys: Array, sums: Array) -> None:
    for b in range(blocks.shape[0]):
        first, second = np.uint64(0), np.uint64(0)
        for i in range(_HALF):
            x, y = blocks[b, 0, i], blocks[b, 1, i]
            first += np.uint64(np.uint32(x + keys[0, i])) * np.uint64(np.uint32(y + keys[1, i]))
            second += np.uint64(np.uint32(x + keys[2, i])) * np.uint64(np.uint32(y + keys[3, i]))
        sums[b, 0], sums[b, 1] = first, second


def _add_by_numpy(blocks: Array, keys: Array, sums: Array) -> None:
    for half in range(2):
        x, y = blocks[:, 0] + keys[2 * half], blocks[:, 1] + keys[2 * half + 1]
        sums[: len(blocks), half] = (x.astype(np.uint64) * y).sum(1)
