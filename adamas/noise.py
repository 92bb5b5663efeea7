"""Draws the only randomness of a release: standard Gaussian values from one seed, on all cores."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from adamas._numerics import normals, normals_kernel
from adamas._numerics.digest import KeyedDigest
from adamas._numerics.threads import share_blocks
from adamas._streams import Seed
from adamas.geometry import Geometry, Value

# Values that a thread draws at a time: enough to pay for the call, few enough to spread evenly.
_BLOCK = 1 << 16
# Room for the values of a block in the tail; on average there are 0.04.
_FAR = 64


class Noise(Protocol):
    """The interface of a kind of noise.

    Attributes:
        name: Its name for `make_private(noise=...)`.
        words: What a privacy statement says about it.
        exact: Whether the noise is exactly Gaussian, so that rounding of the sums themselves counts against
            the sensitivity.
        variance_factor: The variance of the noise, relative to that of the Gaussian values.
        seed: The seed of all draws.
        draws: How many draws were made.
    """

    name: str
    words: str
    exact: bool
    variance_factor: float
    seed: Seed
    draws: int

    def identify(self, values: Iterable[Tensor | float]) -> bytes:
        """Names the next draw together with what it will hide; empty if it is never drawn again.

        Without the seed, the name reveals nothing about the values.
        """

    def release_(
        self,
        flat: Tensor,
        parts: Mapping[Tensor, Tensor],
        geometry: Geometry,
        std: float,
        share: float,
        key: tuple[int, ...] = (),
    ) -> None:
        """Replaces a sum with its release, in place and by one draw: `c + (g - share c) + s std xi`.

        Args:
            flat: The sum, private until now.
            parts: The view of it that belongs to each parameter.
            geometry: Center `c` and scale `s`.
            std: The standard deviation in units of the scale, above 0.
            share: The factor of the center that the sum already contains; private.
            key: Numbers that, with the draw counter, belong to this release alone.
        """

    def skip(self) -> None:
        """Skips one draw, which another process makes."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the position in the stream; it names no seed."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the position."""


class CountedDraws:
    """The position of a noise in its stream: the number of draws. The seed is neither saved nor restored."""

    draws = 0

    def next_draw(self) -> int:
        """Takes the number of the next draw."""
        draw, self.draws = self.draws, self.draws + 1
        return draw

    def skip(self) -> None:
        """See `Noise.skip`."""
        self.draws += 1

    def state_dict(self) -> dict[str, Any]:
        """See `Noise.state_dict`."""
        return {"draws": self.draws}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Noise.load_state_dict`."""
        self.draws = int(state["draws"])


class GaussianNoise(CountedDraws):
    """Draws normal values, reproducibly and in parallel.

    The values of a draw depend on the seed, on how many draws came before it and on the place in the
    tensor, not on the number of threads. The state to save is one counter (and the seed, if it was
    given). Drawing happens on the CPU; for a parameter on another device the values are copied there.

    The first draw compiles a kernel, in a few seconds and once per installation.

    The values come from the stream of a cipher (`_numerics.normals`), so that none reveals anything about the
    others. But they are floating-point numbers, added in floating-point arithmetic: fit for research, and
    open to the floating-point attacks that `adamas.secure_noise` withstands.

    Example:
        >>> from adamas.noise import GaussianNoise
        >>> a, b = GaussianNoise(seed=1), GaussianNoise(seed=1)
        >>> torch.equal(a.normal_(torch.empty(3)), b.normal_(torch.empty(3)))
        True
    """

    name = "reproducible"
    words = (
        "The noise is reproducible: floating-point values of a ChaCha8 stream, not secure against attacks on "
        "their last bits."
    )
    exact = False
    variance_factor = 1.0

    def __init__(self, seed: Seed | int | None = None) -> None:
        self.seed = seed if isinstance(seed, Seed) else Seed(seed)
        self._digest: KeyedDigest | None = None

    def __copy__(self) -> Any:
        refuse_copy(self.seed)
        other = GaussianNoise(self.seed)
        other.draws = self.draws
        return other

    def identify(self, values: Iterable[Tensor | float]) -> bytes:
        """See `Noise.identify`, and `adamas._numerics.digest`."""
        if self.seed.given is None:
            return b""
        if self._digest is None:
            self._digest = KeyedDigest(self.seed)
        return self._digest([float(self.draws), *values])

    def release_(
        self,
        flat: Tensor,
        parts: Mapping[Tensor, Tensor],
        geometry: Geometry,
        std: float,
        share: float,
        key: tuple[int, ...] = (),
    ) -> None:
        """See `Noise.release_`."""
        scales = [geometry.scale[p] for p in parts]
        if all(not isinstance(s, Tensor) and s == scales[0] for s in scales):
            self.add_normal_(flat, float(scales[0]) * std, key)
        elif _on_cpu(flat):
            self.add_normal_(flat, std, key, scales=_Scales(parts.values(), scales))
        else:
            drawn = self.add_normal_(torch.zeros_like(flat), 1.0, key)
            places = torch.split(drawn, [part.numel() for part in parts.values()])
            for s, part, values in zip(scales, parts.values(), places, strict=True):
                if isinstance(s, Tensor):
                    part.addcmul_(values.view(part.shape), s.to(part.dtype), value=std)
                else:
                    part.add_(values.view(part.shape), alpha=s * std)
        for p, part in parts.items():
            add_center_(part, geometry.center_of(p), share)

    def normal_(self, out: Tensor, std: float = 1.0) -> Tensor:
        """Fills a contiguous floating-point tensor with independent normal values of mean 0."""
        return self.add_normal_(out.zero_(), std)

    def add_normal_(
        self, out: Tensor, std: float = 1.0, key: tuple[int, ...] = (), *, scales: "_Scales | None" = None
    ) -> Tensor:
        """Adds the values with which `normal_` would fill the tensor, times `scales` if given."""
        flat = out.view(-1)
        if not _on_cpu(out):
            assert scales is None
            dtype = torch.float64 if out.dtype == torch.float64 else torch.float32
            flat += self.add_normal_(torch.zeros(flat.shape, dtype=dtype), std, key).to(flat.device)
            return out
        draw = self.next_draw()
        words = self.seed.words("noise", draw, *key, count=8).astype(np.uint32)
        values = flat.detach().numpy()
        add = _add if out.dtype == torch.float32 else _add64

        def work(block: int) -> None:
            part = values[block * _BLOCK : (block + 1) * _BLOCK]
            far = np.empty(_FAR, dtype=np.int64)
            each = std if scales is None else scales.times(std, block * _BLOCK, len(part))
            found = add(part, words, each, block, far)
            if found:
                _add_tail(part, each, far[:found], self.seed.generator("tail", draw, *key, block))

        share_blocks(-(-len(values) // _BLOCK), work)
        return out


class _Scales:
    """The scales of consecutive parts of a flat buffer, as arrays."""

    def __init__(self, parts: Iterable[Tensor], scales: Iterable[Value]) -> None:
        self._each: list[tuple[int, int, Any]] = []
        self._dtype: Any = None
        start = 0
        for part, scale in zip(parts, scales, strict=True):
            each: Any = scale
            if isinstance(scale, Tensor):
                values = scale.detach().to(part.dtype)
                each = values.reshape(-1).numpy() if values.dim() else values.item()
            self._each.append((start, start + part.numel(), each))
            self._dtype = np.float64 if part.dtype == torch.float64 else np.float32
            start += part.numel()

    def times(self, std: float, place: int, count: int) -> np.ndarray:
        """Returns `count` scales from a place on, times a number."""
        result = np.empty(count, dtype=self._dtype)
        for start, stop, scale in self._each:
            first, last = max(start, place), min(stop, place + count)
            if first < last:
                of_part = scale[first - start : last - start] if isinstance(scale, np.ndarray) else scale
                np.multiply(of_part, std, out=result[first - place : last - place])
        return result


def _on_cpu(t: Tensor) -> bool:
    """Tells whether values are drawn directly into the memory of a tensor."""
    return t.device.type == "cpu" and t.dtype in (torch.float32, torch.float64)


def refuse_copy(seed: Seed) -> None:
    """Raises if the seed is secret: a copy of the noise would draw the same values for other sums."""
    if seed.given is None:
        raise TypeError(
            "Noise with a secret seed cannot be copied: the copy would repeat it. Make a new run."
        )


def add_center_(mean: Tensor, center: Value | None, share: float) -> Tensor:
    """Adds the center for the examples that are missing: c + s (sum w g - (sum w) c)/(s B), in place."""
    return mean if center is None else mean.add_(center, alpha=1 - share)


def _add(out: np.ndarray, key: np.ndarray, std: float | np.ndarray, block: int, far: np.ndarray) -> int:
    """Adds a block's values, see `normals.add`."""
    add: Any = normals.add
    if normals_kernel.available():
        add = normals_kernel.add_scaled if isinstance(std, np.ndarray) else normals_kernel.add
    each = std if isinstance(std, np.ndarray) else np.float32(std)
    return add(out, key, each, block * (_BLOCK // normals.GROUP), far)  # type: ignore[no-any-return]


def _add64(out: np.ndarray, key: np.ndarray, std: float | np.ndarray, block: int, far: np.ndarray) -> int:
    """Does the same in float64."""
    size = normals.GROUP64
    first, groups = block * (_BLOCK // size), -(-len(out) // size)
    if normals_kernel.available():
        words = np.empty((groups, 16, normals.LANES), dtype=np.uint32)
        normals_kernel.words(key, first, words)
    else:
        words = normals.words(key, first * normals.LANES, groups)
    return normals.add_but_far(out, normals.normals64(words), std, far)


def _add_tail(
    out: np.ndarray, std: float | np.ndarray, far: np.ndarray, generator: np.random.Generator
) -> None:
    """Adds values from the exact tail of the normal density, at some places."""
    for place in far.tolist():
        while True:  # Marsaglia (1964): exponential in the square, then accepted
            u, v = 1.0 - generator.random(2)
            x = math.sqrt(normals.TAIL**2 - 2 * math.log(u))
            if v * x <= normals.TAIL:
                break
        index = place if place >= 0 else -1 - place
        factor = std[index] if isinstance(std, np.ndarray) else std
        out[index] += x * factor if place >= 0 else -x * factor
