"""Makes independent random streams, as pure functions of a secret seed and a place.

SHAKE-256 expands a seed together with the purpose and the place of a draw (step, block). So no two draws
share a state, a position is one number to save, and nothing depends on the number of threads.
`torch.Generator.manual_seed` is not enough: on a CPU it keeps 32 bits of the seed, few enough to search
through, and few enough for two blocks of a run to collide by chance.

SHAKE-256 only seeds `Seed.generator`: whoever sees enough of its values can compute the next ones.
`Seed.stream` is cryptographic throughout, and a secure seed's sampling draws from it. It is AES-256 in
counter mode where `cryptography` is installed (`pip install adamas[secure]`), with a key of its own for each
place, and SHAKE-256 itself elsewhere.
"""

import contextlib
import functools
import hashlib
import importlib
import os
import pickle
import random
import secrets
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

_SEED_BYTES = 32

ciphers: Any = None  # None if missing: SHAKE-256 then makes the streams, at a tenth of the speed
with contextlib.suppress(ImportError):
    ciphers = importlib.import_module("cryptography.hazmat.primitives.ciphers")


class Seed:
    """A secret number from which every stream of a run is derived.

    Args:
        value: A given number makes the run reproducible, and whoever knows it can remove the noise.
            None takes 256 bits from the operating system; they are neither shown nor saved.
        secure: Whether sampling draws from a cryptographic stream. A given value is then refused.
    """

    def __init__(self, value: int | None = None, *, secure: bool = False) -> None:
        if secure and value is not None:
            raise ValueError(
                f"Expected seed=None with noise='secure', got seed={value!r}: whoever knows a seed can "
                "remove the noise. Leave seed= out, or use noise='reproducible'."
            )
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise TypeError(f"Expected seed={value!r} to be a whole number or None.")
        if value is not None and not 0 <= value < 1 << (8 * _SEED_BYTES):
            raise ValueError(f"Expected seed={value!r} in [0, 2**{8 * _SEED_BYTES}).")
        self._given, self._secure = value, secure
        self._process = os.getpid()
        secret = secrets.randbits(8 * _SEED_BYTES) if value is None else value
        self._secret = secret.to_bytes(_SEED_BYTES, "big")

    @property
    def given(self) -> int | None:
        """The given number; None for a secret of the operating system."""
        return self._given

    @property
    def secure(self) -> bool:
        """Whether sampling draws from a cryptographic stream."""
        return self._secure

    def __reduce__(self) -> Any:
        """Refuses to copy or pickle a secret seed: a copy would repeat its noise."""
        if self.given is None:
            raise TypeError(
                "A secret seed cannot be copied or pickled. Save run.state_dict() instead of the run, and "
                "load it into a new one."
            )
        return Seed, (self.given,)

    def __repr__(self) -> str:
        return f"Seed({self.given})" if self.given is not None else "Seed(secret)"

    def same(self, other: "Seed") -> bool:
        """Tells whether both make the same streams."""
        return self._secret == other._secret

    def replace(self, exchange: Callable[[bytes], bytes]) -> None:
        """Replaces the secret with the result of a function of it, before the first draw.

        All ranks of a data-parallel run take over the secret of one of them.
        """
        secret = exchange(self._secret)
        assert len(secret) == _SEED_BYTES
        self._secret = secret

    def words(self, purpose: str, *place: int, count: int) -> np.ndarray:
        """Returns `count` 32-bit words that belong to this purpose and place alone."""
        return np.frombuffer(self._expanded(purpose, place, 4 * count), dtype="<u4")

    def stream(self, purpose: str, *place: int, count: int) -> bytes:
        """Returns the first `count` bytes of the cryptographic stream of this purpose and place alone."""
        if ciphers is None:
            return self._expanded(purpose, place, count)
        cipher = ciphers.Cipher(
            ciphers.algorithms.AES(self._expanded(purpose, place, 32)), ciphers.modes.CTR(bytes(16))
        )
        return cipher.encryptor().update(bytes(count))  # type: ignore[no-any-return]

    def sampling_generator(self, purpose: str, *place: int) -> "np.random.Generator | SecureGenerator":
        """Returns `generator`, or for a secure seed one that draws from the cryptographic stream."""
        if self.secure:
            return SecureGenerator(lambda call, count: self.stream(purpose, *place, call, count=count))
        return self.generator(purpose, *place)

    def generator(self, purpose: str, *place: int) -> np.random.Generator:
        """Returns a NumPy generator that belongs to this purpose and place alone."""
        words = self.words(purpose, *place, count=8)
        return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(words.tolist())))

    def _expanded(self, purpose: str, place: tuple[int, ...], count: int) -> bytes:
        if self.given is None and self._process != os.getpid():
            raise RuntimeError(
                "A secret seed was used in a forked process, which would repeat the noise of its parent. "
                "Call make_private in the process that trains."
            )
        name = purpose.encode()
        message = b"".join(
            [self._secret, len(name).to_bytes(4, "big"), name]
            + [number.to_bytes(8, "big") for number in place]
        )
        return hashlib.shake_256(message).digest(count)


class SecureGenerator:
    """The three methods of a NumPy generator that sampling needs, on a cryptographic stream.

    Args:
        stream: `stream(call, count)` returns the first bytes of the stream of a call: 0, 1, ...
    """

    def __init__(self, stream: Callable[[int, int], bytes]) -> None:
        self._stream = stream
        self._calls = 0

    def random(self, size: int) -> np.ndarray:
        """Draws uniform values, rounded up to multiples of 2^-53: `random < q` has at most probability q."""
        return ((self._words(size) >> np.uint64(11)) + np.uint64(1)) * 2.0**-53

    def permutation(self, n: int) -> np.ndarray:
        """Draws a uniformly random order of the numbers from 0 to n - 1."""
        keys = self._words(n)
        while len(np.unique(keys)) < n:  # with equal keys, sorting would favour an order
            keys = self._words(n)
        return np.argsort(keys)

    def choice(self, values: np.ndarray, size: int, replace: bool) -> np.ndarray:
        """Draws a uniformly random subset of this size."""
        if replace:
            raise ValueError("Expected replace=False.")
        chosen: np.ndarray = values[self.permutation(len(values))[:size]]
        return chosen

    def _words(self, count: int) -> np.ndarray:
        call, self._calls = self._calls, self._calls + 1
        return np.frombuffer(self._stream(call, 8 * count), dtype="<u8")


@contextlib.contextmanager
def global_randomness(state: int) -> Iterator[None]:
    """Seeds torch's, NumPy's and Python's global generators, and restores them afterwards."""
    before = random.getstate(), np.random.get_state(legacy=False)
    try:
        with torch_randomness(state):
            np.random.seed(state)
            random.seed(state)
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


@contextlib.contextmanager
def python_randomness_restored() -> Iterator[None]:
    """Restores Python's and NumPy's global generators afterwards: their states tell how much was drawn."""
    generators = global_generators()[:2]
    states = [generator_state(generator) for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            set_generator_state(generator, state)


@contextlib.contextmanager
def torch_randomness(state: int) -> Iterator[None]:
    """Seeds torch's global generator, and restores it afterwards."""
    if _has_accelerator():
        with torch.random.fork_rng():
            torch.manual_seed(state)
            yield
        return
    # The same without looking for devices, which takes as long as the noise of a small model.
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(state)
    try:
        yield
    finally:
        torch.set_rng_state(before)


@functools.cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()


GENERATORS = (
    random.Random,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    torch.Generator,
)
"""The kinds of random generators that code may hold."""


def generator_state(generator: Any) -> bytes:
    """Returns the state of a random generator, as bytes."""
    if isinstance(generator, random.Random):
        system = isinstance(generator, random.SystemRandom)
        return b"" if system else pickle.dumps(generator.getstate())
    if isinstance(generator, torch.Generator):
        return bytes(generator.get_state().numpy())
    if isinstance(generator, np.random.RandomState):
        return pickle.dumps(generator.get_state())
    return pickle.dumps(getattr(generator, "bit_generator", generator).state)


def set_generator_state(generator: Any, state: bytes) -> None:
    """Restores a state that `generator_state` returned."""
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif state:
        value = pickle.loads(state)
        if isinstance(generator, random.Random):
            generator.setstate(value)
        elif isinstance(generator, np.random.RandomState):
            generator.set_state(value)
        else:
            getattr(generator, "bit_generator", generator).state = value


def global_generators() -> list[Any]:
    """Returns Python's, NumPy's and torch's global generators."""
    hidden = random._inst  # its methods are the functions of random
    return [hidden, np.random.mtrand._rand, torch.default_generator]


def seed_python_from_torch() -> None:
    """Seeds Python's and NumPy's global generators from the state of torch's."""
    seed = zlib.crc32(bytes(torch.get_rng_state().numpy()))
    random.seed(seed)
    np.random.seed(seed)
