"""Computes the normal values of `adamas._numerics.normals`, bit for bit, in one pass, compiled by Numba.

The loops over the lanes of a group have no branches, so that the compiler can vectorize them.
"""

import functools
import math

import numpy as np

from adamas._numerics import normals
from adamas._numerics.compiled import Array, compiled, numba
from adamas._numerics.normals import COS, GROUP, LANES, LN2, LOG, QUARTER, SIN

_U, _I, _F = np.uint32, np.int32, np.float32
_PAIRS = GROUP // 2
_E0, _E1, _E2, _E3 = normals.CONSTANTS
_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7 = LOG
_S0, _S1, _S2 = SIN
_C0, _C1, _C2 = COS
# Larger words give radii well below the start of the tail.
_NEAR_TAIL = _U(1.1 * 2.0**32 * math.exp(-(normals.TAIL**2) / 2))
_ROOT, _TAIL, _UNIT = _I(normals.ROOT), _F(normals.TAIL), _F(2.0**-31)


@compiled
def _quarter(a: np.uint32, b: np.uint32, c: np.uint32, d: np.uint32) -> tuple[np.uint32, ...]:
    a = _U(a + b)
    d = _U(d ^ a)
    d = _U((d << _U(16)) | (d >> _U(16)))
    c = _U(c + d)
    b = _U(b ^ c)
    b = _U((b << _U(12)) | (b >> _U(20)))
    a = _U(a + b)
    d = _U(d ^ a)
    d = _U((d << _U(8)) | (d >> _U(24)))
    c = _U(c + d)
    b = _U(b ^ c)
    b = _U((b << _U(7)) | (b >> _U(25)))
    return a, b, c, d


@compiled
def _two_rounds(
    a0: np.uint32, a1: np.uint32, a2: np.uint32, a3: np.uint32,
    b0: np.uint32, b1: np.uint32, b2: np.uint32, b3: np.uint32,
    c0: np.uint32, c1: np.uint32, c2: np.uint32, c3: np.uint32,
    d0: np.uint32, d1: np.uint32, d2: np.uint32, d3: np.uint32,
) -> tuple[np.uint32, ...]:  # fmt: skip
    a0, b0, c0, d0 = _quarter(a0, b0, c0, d0)
    a1, b1, c1, d1 = _quarter(a1, b1, c1, d1)
    a2, b2, c2, d2 = _quarter(a2, b2, c2, d2)
    a3, b3, c3, d3 = _quarter(a3, b3, c3, d3)
    a0, b1, c2, d3 = _quarter(a0, b1, c2, d3)
    a1, b2, c3, d0 = _quarter(a1, b2, c3, d0)
    a2, b3, c0, d1 = _quarter(a2, b3, c0, d1)
    a3, b0, c1, d2 = _quarter(a3, b0, c1, d2)
    return a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3


@compiled
def _one_group(out: Array, key: Array, group: int) -> None:
    """Computes `normals.words` of one group: `(16, LANES)`."""
    k0, k1, k2, k3, k4, k5, k6, k7 = key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7]
    first = group * LANES  # a multiple of LANES: only the low word changes in a group
    low, high, zero = _U(first), _U(first >> 32), _U(0)
    for i in range(LANES):
        count = _U(low + i)
        x = (_E0, _E1, _E2, _E3, k0, k1, k2, k3, k4, k5, k6, k7, count, high, zero, zero)
        x = _two_rounds(*x)
        x = _two_rounds(*x)
        x = _two_rounds(*x)
        x = _two_rounds(*x)
        out[0, i], out[1, i], out[2, i], out[3, i] = x[0] + _E0, x[1] + _E1, x[2] + _E2, x[3] + _E3
        out[4, i], out[5, i], out[6, i], out[7, i] = x[4] + k0, x[5] + k1, x[6] + k2, x[7] + k3
        out[8, i], out[9, i], out[10, i], out[11, i] = x[8] + k4, x[9] + k5, x[10] + k6, x[11] + k7
        out[12, i], out[13, i], out[14, i], out[15, i] = x[12] + count, x[13] + high, x[14], x[15]


@compiled
def _transform(uniform: Array, out: Array) -> np.uint32:
    """Computes `normals.normals` of one group, flat. Returns the word that gave the largest radius."""
    least = uniform[0]
    for i in range(_PAIRS):
        u = (_F(_I(uniform[i] >> _U(1))) + _F(0.5)) * _UNIT
        bits = np.float32(u).view(np.int32)
        exponent = _I(_I(bits - _ROOT) >> _I(23))
        m = np.int32(bits - _I(exponent << _I(23))).view(np.float32) - _F(1)
        p = ((((((_L0 * m + _L1) * m + _L2) * m + _L3) * m + _L4) * m + _L5) * m + _L6) * m + _L7
        r = np.sqrt(_F(-2) * (_F(exponent) * LN2 + (m - m * m * (_F(0.5) - m * p))))
        least = min(least, uniform[i])
        v = uniform[i + _PAIRS]
        y = _F(_I(_U(v << _U(2)))) * QUARTER
        q = y * y
        sine = y + y * q * ((_S0 * q + _S1) * q + _S2)
        sign = _F(1) - _F(_I(_U(v >> _U(31)) << _U(1)))
        cosine = (_F(1) - q * _F(0.5) + q * q * ((_C0 * q + _C1) * q + _C2)) * sign
        swapped = (v & _U(1 << 30)) != 0
        out[i] = (sine if swapped else cosine) * r
        out[i + _PAIRS] = (cosine if swapped else sine) * r
    return least  # type: ignore[no-any-return]


@compiled
def words(key: Array, first: int, out: Array) -> None:
    """Writes `normals.words` into `(groups, 16, LANES)`, from a group on."""
    for group in range(len(out)):
        _one_group(out[group], key, first + group)


@compiled
def _group(
    values: Array, uniform: Array, key: Array, group: int, start: int, count: int, far: Array, found: int
) -> int:
    """Computes the values of a group. Those of the first `count` in the tail become 0, and go to `far`."""
    _one_group(uniform, key, group)
    least = _transform(uniform.reshape(GROUP), values)
    if least < _NEAR_TAIL:
        for i in range(count):
            if np.abs(values[i]) > _TAIL and found < len(far):
                far[found] = start + i if values[i] > 0 else -1 - (start + i)
                values[i] = 0
                found += 1
    return found


@compiled
def add(out: Array, key: Array, std: np.float32, first: int, far: Array) -> int:
    """See `normals.add`."""
    uniform = np.empty((16, LANES), np.uint32)
    values = np.empty(GROUP, np.float32)
    found = 0
    for start in range(0, len(out), GROUP):
        part = out[start : start + GROUP]
        found = _group(values, uniform, key, first + start // GROUP, start, len(part), far, found)
        for i in range(len(part)):
            part[i] += std * values[i]
    return found


@compiled
def add_scaled(out: Array, key: Array, std: Array, first: int, far: Array) -> int:
    """Does the same with a factor for each value."""
    uniform = np.empty((16, LANES), np.uint32)
    values = np.empty(GROUP, np.float32)
    found = 0
    for start in range(0, len(out), GROUP):
        part, factors = out[start : start + GROUP], std[start : start + GROUP]
        found = _group(values, uniform, key, first + start // GROUP, start, len(part), far, found)
        for i in range(len(part)):
            part[i] += factors[i] * values[i]
    return found


@functools.cache
def available() -> bool:
    """Tells whether the kernels can be used: they compile, and match `normals` bit for bit."""
    try:
        f, u, i = numba.float32, numba.uint32, numba.int64
        add.compile((f[::1], u[::1], f, i, i[::1]))
        add_scaled.compile((f[::1], u[::1], f[::1], i, i[::1]))
        words.compile((u[::1], i, u[:, :, ::1]))
        return _agree()
    except Exception:  # whatever it is, noise can be made without
        return False


def _agree() -> bool:
    key = np.arange(1, 9, dtype=np.uint32) * np.uint32(0x9E3779B9)
    size = 16 * GROUP - 7
    pairs = [(add, np.float32(0.7)), (add_scaled, np.linspace(0.5, 2, size, dtype=np.float32))]
    results: list[list[object]] = [[], []]
    for kernel, std in pairs:
        for draw, result in zip((kernel, normals.add), results, strict=True):
            out, far = np.linspace(-1, 1, size, dtype=np.float32), np.zeros(8, dtype=np.int64)
            found = draw(out, key, std, (1 << 26) - 3, far)  # the counter's high word changes
            result += [out.tobytes(), found, far.tobytes()]
    uniform = np.empty((3, 16, LANES), dtype=np.uint32)
    words(key, 5, uniform)
    return results[0] == results[1] and np.array_equal(uniform, normals.words(key, 5 * LANES, 3))
