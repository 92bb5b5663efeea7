r"""Secure noise: the exact Gaussian mechanism, rounded to a public grid, on a cryptographic stream.

Noise in floating point gives a release away. The values that :math:`v + z\xi` can take depend on
:math:`v`: samplers reach some floating-point numbers and not others (Mironov 2012 for Laplace noise; Jin,
McMurtry, Rubinstein and Ohrimenko 2022 for Gaussian noise), and even after a perfect draw the addition
leaves last bits that only some :math:`v` can leave (Haney, Desfontaines, Hartman, Shrestha and Hay 2022).
Adding up several draws (Holohan and Braghin 2021) makes the first attack harder and does not meet the
second. Here, with :math:`x` the whitened sum, :math:`z` the noise multiplier and
:math:`\xi \sim N(0, I)` with *real* values,

.. math:: \text{release} = h \cdot \lfloor (x + z\,\xi)/h \rceil, \qquad h = 2^{-20} z.

**Why it is private.** The bracket holds the ideal Gaussian mechanism, and rounding to a grid that is public
is post-processing. So multiplier, sensitivity and every accountant's epsilon hold as they stand. Nothing is
added to delta. `x` is not rounded by itself, which would add to the sensitivity. Every release is a multiple
of `h`, whatever the data.

**How it is exact.** A pair of real normal values is a function (Box and Muller 1958) of two real uniform
ones, infinite strings of random bits of which the first 64 are drawn. If all reals that begin with these
bits, with room for the errors of float64, round to the same integer, that integer is the result. Otherwise,
for 1 in 260,000 values, more bits are drawn and computed in decimal arithmetic with bounds on its errors,
until one integer is left (`adamas._numerics.exact_normals`). This is the interval refining of Haney et al.,
on whole tensors.

**What it rests on.** On float64's logarithm, sine and cosine being right to 2^-44 (they are to about 2^-52;
compared with decimal arithmetic when the first noise is made), and on the stream (see `adamas._streams`)
not being told from random bits: the guarantee is against adversaries who cannot break AES-256 or SHAKE-256.
What it does not cover is in docs/secure_noise.md.
"""

import math
import threading
from collections.abc import Iterable, Mapping
from decimal import Context, Decimal, localcontext
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from adamas._numerics.exact_normals import WHOLE, decided, normal_interval
from adamas._numerics.threads import share_blocks
from adamas._streams import Seed
from adamas.errors import UnsupportedError
from adamas.geometry import Geometry, Value
from adamas.noise import CountedDraws, GaussianNoise, refuse_copy

Array: TypeAlias = np.ndarray

# Grid steps in a standard deviation. Rounding then adds 2^-40/12 to a variance of 1.
_STEPS = 2.0**20
GRID = 1 / _STEPS
"""The width of the grid, in standard deviations."""
# Values from one stream. A block fits a core's cache, and torch does not split the work on it.
_BLOCK = 1 << 15
# Bound on the error of float64, in grid steps: see `_from_bits`. It leaves room for functions that are 256
# times as wrong as documented.
_MARGIN = 2.0**-20
# Radii of uniform values outside are computed exactly: below, the bits not drawn matter; above, those that
# float64 cannot hold next to a 1.
_LEAST, _MOST = 2.0**-20, 1 - 2.0**-20


class SecureNoise(CountedDraws):
    """Adds normal values exactly, on a grid, from a secret of the operating system.

    It takes no seed and saves none: `state_dict` holds a counter, and a resumed run has a new secret. The
    work is done on the CPU by all threads. A tensor on another device is copied there and back.

    Guarantee:
        `release_` and `round_` compute a function of the ideal Gaussian mechanism's output and of public
        values.

    Example:
        >>> from adamas.secure_noise import SecureNoise
        >>> released = SecureNoise().round_(torch.tensor([0.1, 5.0]), std=0.5)
        >>> grid_steps = released.double() / (0.5 * 2**-20)
        >>> torch.equal(grid_steps, grid_steps.round())
        True
    """

    name = "secure"
    words = (
        "The noise is secure: the exact Gaussian mechanism, rounded to a grid of 2^-20 standard deviations "
        "by interval refining, on a cryptographic stream."
    )
    exact = True
    variance_factor = 1 + _STEPS**-2 / 12  # of the rounding

    def __init__(self, seed: Seed | None = None) -> None:
        self.seed = Seed(secure=True) if seed is None else seed
        if not self.seed.secure:
            raise ValueError("Expected a secure seed for secure noise: leave seed= out.")
        _check_functions()

    def __copy__(self) -> Any:
        refuse_copy(self.seed)

    def identify(self, values: Iterable[Tensor | float]) -> bytes:
        """See `Noise.identify`: a secret seed never comes back."""
        return b""

    def release_(
        self,
        flat: Tensor,
        parts: Mapping[Tensor, Tensor],
        geometry: Geometry,
        std: float,
        share: float,
        key: tuple[int, ...] = (),
    ) -> None:
        """See `Noise.release_`.

        Center, noise and grid are applied together: a center that is added later, times a private share,
        would move the grid. The draw counter alone is the key: a secret seed has no second run.
        """
        scales = [geometry.scale[p] for p in parts]
        if not geometry.center and all(not isinstance(s, Tensor) and s == scales[0] for s in scales):
            self.round_(flat, std, scales[0])
            return
        draw = self.next_draw()
        for number, (p, part) in enumerate(parts.items()):
            self._round(part, std, geometry.scale[p], geometry.center_of(p), share, (draw, number))

    def round_(
        self,
        sums: Tensor,
        std: float,
        scale: Value = 1.0,
        center: Value | None = None,
        share: float = 0.0,
    ) -> Tensor:
        r"""Replaces a sum with its release, in place.

        .. math:: g \leftarrow c + h \lfloor (g - a c + s\,\sigma\,\xi)/h \rceil, \qquad h = 2^{-20} s \sigma

        Args:
            sums: The sum :math:`g`, contiguous; private until now.
            std: The standard deviation :math:`\sigma`, above 0.
            scale: The scale :math:`s`, public.
            center: The center :math:`c`, public; None for 0.
            share: The factor :math:`a`, private.
        """
        return self._round(sums, std, scale, center, share, (self.next_draw(),))

    def _round(
        self,
        sums: Tensor,
        std: float,
        scale: Value,
        center: Value | None,
        share: float,
        place: tuple[int, ...],
    ) -> Tensor:
        if sums.device.type != "cpu":
            scale = scale.cpu() if isinstance(scale, Tensor) else scale
            center = center.cpu() if isinstance(center, Tensor) else center
            return sums.copy_(self._round(sums.cpu(), std, scale, center, share, place))
        flat: Array = sums.detach().view(-1).numpy()
        scales = _flat(scale, sums)
        centers = None if center is None else _flat(center, sums)

        def work(block: int) -> None:
            part = slice(block * _BLOCK, (block + 1) * _BLOCK)
            around = None if centers is None else _part(centers, part)
            self._release(flat[part], _part(scales, part) * (std / _STEPS), around, share, (*place, block))

        share_blocks(-(-len(flat) // _BLOCK), work)
        return sums

    def normal_(self, out: Tensor, std: float = 1.0) -> Tensor:
        """Fills a contiguous tensor with normal values on the grid."""
        return self.round_(out.zero_(), std)

    def _release(
        self,
        values: Array,
        step: Array | float,
        center: Array | float | None,
        share: float,
        place: tuple[int, ...],
    ) -> None:
        """Releases one block. `step` is the width of the grid."""
        n = len(values)
        exact, whole = _thread.scratch[2:4, :n]
        np.copyto(exact, values)  # float64 from here on
        if center is not None:
            exact -= center * share
        exact /= step
        np.rint(exact, out=whole)
        offset = np.subtract(exact, whole, out=exact)  # exact: it is a multiple of the last place
        whole += self._rounded(offset, place)
        whole += 0.0  # the sign of -0 would reveal the side of the sum
        whole *= step
        if center is not None:
            whole += center
        values[:] = whole

    def _rounded(self, offset: Array, place: tuple[int, ...]) -> Array:
        """Rounds noise plus offset to integers, in grid steps."""
        n = len(offset)
        pairs = (n + 1) // 2
        bits = np.frombuffer(self.seed.stream("secure noise", *place, count=16 * pairs), dtype="<i8")
        noise, unsure = _from_bits(bits)
        noise, rounded = noise[:n], _thread.scratch[4, :n]
        noise += offset
        np.rint(noise, out=rounded)
        noise -= rounded
        if unsure.size or not (noise.min() >= _MARGIN - 0.5 and noise.max() <= 0.5 - _MARGIN):  # or NaN
            near = np.flatnonzero(~(np.abs(noise) <= 0.5 - _MARGIN))
            for i in {*near.tolist(), *unsure.tolist(), *(unsure + pairs).tolist()}:
                if i < n:
                    rounded[i] = self._decided(bits, i, float(offset[i]), place)
        return rounded

    def _decided(self, bits: Array, i: int, offset: float, place: tuple[int, ...]) -> int:
        """Rounds the noise at place `i` plus an offset, with as many more bits as that takes."""
        pairs = len(bits) // 2
        pair = i % pairs

        def more(words: int) -> Array:
            stream = self.seed.stream("secure noise, more", *place, pair, count=16 * words)
            return np.frombuffer(stream, dtype=">u8")

        first, second = int(bits[pair]), int(bits[pairs + pair])
        return decided(first, second, more, steps=_STEPS, sine=i >= pairs, offset=offset)


def _flat(value: Value, like: Tensor) -> Array | float:
    """Returns a number, or one for each place of a flat tensor."""
    if isinstance(value, Tensor) and value.dim():
        flat: Array = value.detach().expand(like.shape).reshape(-1).numpy()
        return flat
    return float(value)


def _part(value: Array | float, place: slice) -> Array | float:
    return value[place].astype(np.float64) if isinstance(value, np.ndarray) else value


def _from_bits(bits: Array) -> tuple[Array, Array]:
    r"""Computes normal values in grid steps, cosines then sines, and the pairs that float64 cannot decide.

    .. math:: \sqrt{-2 \ln a}\,(\cos \pi t, \sin \pi t), \qquad a = |b_1| / 2^{63}, \; t = b_2 / 2^{63}

    Guarantee:
        For pairs that are not listed, and whatever bits follow, errors are below `_MARGIN` grid steps, 2^-40
        of a deviation. Radii are wrong by at most 2^-44: bits that were not drawn are 2^-43 of `a` at most,
        and its rounding to float64 near 1, by 2^-54, is divided by a radius of 2^-9.5 or more. Angles are
        wrong by 2^-50, times a radius of at most 5.3. Functions that are right to 2^-44 add 2^-41.
    """
    pairs = len(bits) // 2
    uniform, noise = _thread.scratch[:2, : 2 * pairs]
    np.copyto(uniform, bits)
    uniform *= 2.0**-WHOLE
    radius, angle = uniform[:pairs], uniform[pairs:]
    np.abs(radius, out=radius)
    unsure = np.empty(0, dtype=np.int64)
    if pairs and (radius.min() < _LEAST or radius.max() > _MOST):
        unsure = np.flatnonzero((radius < _LEAST) | (radius > _MOST))
        radius[unsure] = 0.5
    angle *= math.pi
    # torch's functions are several times as fast as NumPy's.
    torch.cos(torch.from_numpy(angle), out=torch.from_numpy(noise[:pairs]))
    torch.sin(torch.from_numpy(angle), out=torch.from_numpy(noise[pairs:]))
    torch.from_numpy(radius).log_()
    radius *= -2 * _STEPS**2
    np.sqrt(radius, out=radius)
    noise[:pairs] *= radius
    noise[pairs:] *= radius
    return noise, unsure


NOISES: dict[str, type[GaussianNoise] | type[SecureNoise]] = {
    each.name: each for each in (GaussianNoise, SecureNoise)
}
"""Kinds of noise by name."""


class _PerThread(threading.local):
    """Scratch memory for the numbers of a block, one for each thread."""

    def __init__(self) -> None:
        self.scratch = np.empty((5, _BLOCK))


_thread = _PerThread()


@cache
def _check_functions() -> None:
    """Compares float64's logarithm, sine and cosine with decimal arithmetic, over the range in use."""
    rng = np.random.Generator(np.random.PCG64DXSM(0))
    bits = rng.integers(-(1 << 63), 1 << 63, size=128, dtype=np.int64)
    edges = [int(_LEAST * 2**WHOLE) + 1, int(_MOST * 2**WHOLE) - 1024, 1 << 62]
    bits[: len(edges)] = edges
    bits[64 : 64 + 4] = [0, 1 << 62, -(1 << 63), 1 << 61]
    noise, unsure = _from_bits(bits)
    for place, value in enumerate(noise.tolist()):
        if place % 64 in unsure:
            continue
        low, width = normal_interval(int(bits[place % 64]), int(bits[64 + place % 64]), [], sine=place >= 64)
        assert width is not None
        with localcontext(Context()):
            error = abs(float(Decimal(value) - Decimal(_STEPS) * low))
        if error > _MARGIN / 8 + _STEPS * float(width):  # the width comes from bits that were not drawn
            raise UnsupportedError(
                f"torch {torch.__version__} computes logarithms, sines or cosines too inexactly on this "
                "machine for noise='secure'. Use a version of torch that adamas supports (pyproject.toml)."
            )
