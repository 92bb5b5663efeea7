"""The only randomness of a release: standard Gaussian values from one seed, drawn on all cores."""

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adamas._streams import Seed
from adamas.errors import UnsupportedError

# Values that one generator state serves: small enough that a million parameters keep several cores
# busy, large enough that setting up the state (11 us) is 1% of the drawing (1 ms).
_BLOCK = 1 << 18
# torch makes float32 normal values of 24-bit uniform ones, so that none is beyond 5.77 standard deviations,
# and a shift by a gradient could end where the other world's noise cannot. Values beyond this one, 1 in
# 2 million, are drawn anew from the exact tail.
_TAIL = 5.0
_STATE_WORDS = 624  # of a Mersenne Twister
_STATE_OFFSET = 24  # bytes before them in the state of torch's CPU generator


class GaussianNoise:
    """Draws normal values, reproducibly and in parallel.

    The values of a draw depend on the seed, on how many draws came before it and on the place in the
    tensor, not on the number of threads. The state to save is one counter (and the seed, if it was
    given). Drawing happens on the CPU; for a parameter on another device the values are copied there.

    The values are floating-point numbers of a Mersenne Twister, added in floating-point arithmetic: right
    for research, and open to the attacks that `adamas.secure_noise` withstands.

    Example:
        >>> from adamas.noise import GaussianNoise
        >>> a, b = GaussianNoise(seed=1), GaussianNoise(seed=1)
        >>> torch.equal(a.normal_(torch.empty(3)), b.normal_(torch.empty(3)))
        True
    """

    name = "reproducible"
    words = (
        "The noise is reproducible: floating-point values of a Mersenne Twister, not secure against attacks "
        "on their last bits."
    )

    def __init__(self, seed: Seed | int | None = None) -> None:
        self.seed = seed if isinstance(seed, Seed) else Seed(seed)
        self.draws = 0
        _check_generator_layout()

    def normal_(self, out: Tensor, std: float = 1.0) -> Tensor:
        """Fills a contiguous floating-point tensor with independent normal values of mean 0."""
        if out.device.type != "cpu":
            return out.copy_(self.normal_(torch.empty_like(out, device="cpu"), std))
        self._in_parallel(out, std, self._fill)
        return out

    def add_normal_(self, out: Tensor, std: float = 1.0) -> Tensor:
        """Adds the values with which `normal_` would fill the tensor."""
        if out.device.type != "cpu":
            return out.add_(self.normal_(torch.empty_like(out, device="cpu"), std).to(out.device))
        self._in_parallel(out, std, self._add)
        return out

    def skip(self) -> None:
        """Moves on by one draw, which another process makes."""
        self.draws += 1

    def state_dict(self) -> dict[str, Any]:
        """The position in the stream; it names no seed."""
        return {"draws": self.draws}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues at a saved position."""
        self.draws = int(state["draws"])

    def _in_parallel(self, out: Tensor, std: float, work: Callable[[Tensor, float, int, int], None]) -> None:
        """One draw: the blocks of a tensor, dealt out to the threads."""
        draw, self.draws = self.draws, self.draws + 1
        flat = out.view(-1)
        share_blocks(
            -(-flat.numel() // _BLOCK),
            lambda block: work(flat[block * _BLOCK : (block + 1) * _BLOCK], std, draw, block),
        )

    def _fill(self, values: Tensor, std: float, draw: int, block: int) -> None:
        generator = _generator(self.seed.words("noise", draw, block, count=_STATE_WORDS))
        values.normal_(0.0, std, generator=generator)
        if values.numel():
            low, high = values.aminmax()
            if max(-float(low), float(high)) > _TAIL * std:
                _redraw_tail(values.numpy(), std, self.seed.generator("tail", draw, block))

    def _add(self, values: Tensor, std: float, draw: int, block: int) -> None:
        scratch = _thread.scratch  # in the cache
        if scratch.dtype != values.dtype:
            scratch = scratch.to(values.dtype)
        scratch = scratch[: len(values)]
        self._fill(scratch, std, draw, block)
        values.add_(scratch)


def share_blocks(blocks: int, work: Callable[[int], None]) -> None:
    """Deals the work on blocks 0, 1, ... out to torch's number of threads."""
    threads = min(torch.get_num_threads(), max(1, blocks))

    def share(first: int) -> None:
        for block in range(first, blocks, threads):
            work(block)

    others = [_executor(threads - 1).submit(share, first) for first in range(1, threads)]
    share(0)
    for other in others:
        other.result()


def _redraw_tail(values: np.ndarray, std: float, generator: np.random.Generator) -> None:
    """Gives the values beyond `_TAIL` their magnitudes anew, from the exact tail of the normal density."""
    far = np.flatnonzero((values > _TAIL * std) | (values < -_TAIL * std))
    magnitudes: list[float] = []
    while len(magnitudes) < len(far):  # Marsaglia (1964): exponential in the square, then accepted
        u, v = 1.0 - generator.random(2)
        x = math.sqrt(_TAIL**2 - 2 * math.log(u))
        if v * x <= _TAIL:
            magnitudes.append(x * std)
    values[far] = np.copysign(magnitudes, values[far])


def _generator(words: np.ndarray) -> torch.Generator:
    """A torch generator whose Mersenne Twister starts from these 624 words, all 19,937 bits of it."""
    generator = _thread.generator
    state = _thread.state
    state[_STATE_OFFSET : _STATE_OFFSET + 8 * _STATE_WORDS].view(np.uint64)[:] = words
    generator.set_state(torch.from_numpy(state))
    return generator


class _PerThread(threading.local):
    """For each thread a generator, the bytes of the state of one that was just seeded, and a block."""

    def __init__(self) -> None:
        self.generator = torch.Generator()
        self.state = torch.Generator().manual_seed(0).get_state().numpy().copy()
        self.scratch = torch.empty(_BLOCK)


_thread = _PerThread()


@cache
def _executor(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="adamas-noise")


@cache
def _check_generator_layout() -> None:
    """Compares a torch generator that was set up by `_generator` with NumPy's Mersenne Twister."""
    words = Seed(0).words("layout", count=_STATE_WORDS)
    drawn = torch.empty(4, dtype=torch.int32).random_(0, 1 << 16, generator=_generator(words))
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": _STATE_WORDS}}
    if drawn.tolist() != [int(raw) % (1 << 16) for raw in twister.random_raw(4)]:
        raise UnsupportedError(
            f"torch {torch.__version__} lays out its generator's state in an unknown way, so the noise "
            "cannot be seeded. Use a version of torch that adamas supports (see pyproject.toml)."
        )
