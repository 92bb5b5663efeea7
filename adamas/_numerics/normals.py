r"""Defines standard normal values of a cryptographic stream, in NumPy.

The stream is ChaCha with 8 rounds (Bernstein, 2008) under a key of 256 bits; attacks are known for 7. Box and
Muller's transform turns two words into two values:

.. math::
    x_1 = r \cos\varphi, \quad x_2 = r \sin\varphi, \qquad r = \sqrt{-2 \ln u}, \quad \varphi = 2\pi v.

In float32 it uses sums, products, roots and conversions only, each of which IEEE 754 rounds in one way. So a
value is the same on every machine, with and without `normals_kernel`. The polynomials are
Chebyshev interpolations; their error is below float32's rounding.
"""

import math

import numpy as np

from adamas._numerics.compiled import Array

LANES = 64  # blocks of ChaCha in parallel, to fill vector instructions
GROUP = 16 * LANES  # words that they make together, and values in float32
GROUP64 = GROUP // 2  # values in float64

# Values beyond it are drawn again from the exact tail: the smallest uniform word bounds the radius.
TAIL = 5.0

CONSTANTS = np.array([0x61707865, 0x3320646E, 0x79622D32, 0x6B206574], dtype=np.uint32)

F = np.float32
ROOT = 0x3F3504F3  # the bits of sqrt(1/2)
LN2 = F(math.log(2))
QUARTER = F(math.pi / 4 * 2.0**-31)
# (ln(1 + m) - m + m^2/2) / m^3 between sqrt(1/2) and sqrt(2), from the highest power of m down
LOG = tuple(
    F(c)
    for c in (
        *(-0.0810155833327371, 0.12712307677755766, -0.1297223898897334, 0.14202173822182812),
        *(-0.16642247595903933, 0.2000146857692075, -0.2500029654603984, 0.3333332859677578),
    )
)
# (sin(y)/y - 1) / y^2 and (cos(y) - 1 + y^2/2) / y^4 up to pi/4, from the highest power of y^2 down
SIN = tuple(F(c) for c in (-0.00019587924705063452, 0.008332748518170757, -0.1666666466452438))
COS = tuple(F(c) for c in (2.4547966092312256e-05, -0.001388830322293631, 0.04166666466124578))


def words(key: Array, first: int, groups: int, rounds: int = 8) -> Array:
    """Computes blocks of the stream: `(groups, 16, LANES)`, a block in each lane.

    Args:
        key: 8 words.
        first: The 64-bit number of the first block.
        groups: The number of groups of `LANES` blocks.
        rounds: 8, or 20 as in RFC 8439.
    """
    count = np.uint64(first) + np.arange(groups * LANES, dtype=np.uint64)
    start = np.zeros((4, 4, len(count)), dtype=np.uint32)
    start[0] = CONSTANTS[:, None]
    start[1:3] = key.reshape(2, 4, 1)
    start[3, 0], start[3, 1] = count & np.uint64(0xFFFFFFFF), count >> np.uint64(32)
    rows = start.copy()
    scratch = np.empty_like(rows[0])
    for _ in range(rounds // 2):
        _quarter_rounds(rows, scratch)
        for i in (1, 2, 3):  # the diagonals become columns
            rows[i] = np.roll(rows[i], -i, axis=0)
        _quarter_rounds(rows, scratch)
        for i in (1, 2, 3):
            rows[i] = np.roll(rows[i], i, axis=0)
    rows += start
    return rows.reshape(16, groups, LANES).transpose(1, 0, 2)


def _quarter_rounds(rows: Array, scratch: Array) -> None:
    a, b, c, d = rows
    for x, y, z, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        x += y
        z ^= x
        np.right_shift(z, np.uint32(32 - bits), out=scratch)
        np.left_shift(z, np.uint32(bits), out=z)
        z |= scratch


def normals(uniform: Array) -> Array:
    """Turns the words of some groups into float32 values: `(groups, GROUP)`."""
    uniform = uniform.reshape(len(uniform), 2, GROUP // 2)
    first, second = uniform[:, 0], uniform[:, 1]
    u = ((first >> np.uint32(1)).astype(np.int32).astype(F) + F(0.5)) * F(2.0**-31)
    bits = u.view(np.int32)
    exponent = (bits - np.int32(ROOT)) >> np.int32(23)
    m = (bits - (exponent << np.int32(23))).view(F) - F(1)
    p = _horner(LOG, m)
    r = np.sqrt(F(-2) * (exponent.astype(F) * LN2 + (m - m * m * (F(0.5) - m * p))))
    y = (second << np.uint32(2)).view(np.int32).astype(F) * QUARTER
    q = y * y
    sine = y + y * q * _horner(SIN, q)
    sign = F(1) - ((second >> np.uint32(31)) << np.uint32(1)).astype(np.int32).astype(F)
    cosine = (F(1) - q * F(0.5) + q * q * _horner(COS, q)) * sign
    swapped = (second & np.uint32(1 << 30)) != 0
    return np.concatenate((np.where(swapped, sine, cosine) * r, np.where(swapped, cosine, sine) * r), axis=1)


def normals64(uniform: Array) -> Array:
    """Turns the words of some groups into float64 values: `(groups, GROUP64)`."""
    pairs = uniform.reshape(len(uniform), 2, 2, GROUP // 4).astype(np.uint64)
    whole = ((pairs[:, 0] << np.uint64(32)) | pairs[:, 1]) >> np.uint64(11)
    u, v = np.moveaxis((whole.astype(np.float64) + 0.5) * 2.0**-53, 1, 0)
    r, angle = np.sqrt(-2 * np.log(u)), 2 * math.pi * v
    return np.concatenate((r * np.cos(angle), r * np.sin(angle)), axis=1)


def _horner(coefficients: tuple[np.float32, ...], x: Array) -> Array:
    total = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = total * x + c
    return total


def add(out: Array, key: Array, std: np.float32 | Array, first: int, far: Array) -> int:
    """Adds `std` times the values of the groups from `first` on to a flat float32 array.

    `std` may hold a factor for each value. Values beyond `TAIL` are left out: their places are written to
    `far`, as i, or -1 - i for a negative value, and their number is returned. If `far` is too short for all
    of them, the others are added.
    """
    uniform = words(key, first * LANES, -(-len(out) // GROUP))
    return add_but_far(out, normals(uniform), std, far)


def add_but_far(out: Array, values: Array, std: float | np.float32 | Array, far: Array) -> int:
    """Adds `std` times the values, as far as `out` reaches, except those beyond `TAIL`; see `add`."""
    values = values.reshape(-1)[: len(out)]
    places = np.flatnonzero(np.abs(values) > TAIL)[: len(far)]
    far[: len(places)] = np.where(values[places] < 0, -1 - places, places)
    values[places] = 0
    out += std * values
    return len(places)
