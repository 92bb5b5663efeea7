"""Independent random streams as pure functions of a secret seed and a place.

A seed is expanded by SHAKE-256 together with the purpose and the place of a draw (step, block), so that
no two draws share a state, a position is one number to save, and nothing depends on how many threads
drew. `torch.Generator.manual_seed` would not do: on a CPU it keeps 32 bits of the seed, few enough to
search through, and few enough for two of a run's blocks to meet by chance.
"""

import hashlib
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

_SEED_BYTES = 32


class Seed:
    """A secret number from which every stream of a run is derived.

    Args:
        value: A given number makes the run reproducible, and whoever knows it can remove the noise.
            None takes 256 bits from the operating system; they are shown and saved nowhere.
    """

    def __init__(self, value: int | None = None) -> None:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise TypeError(f"Expected seed={value!r} to be a whole number or None.")
        if value is not None and not 0 <= value < 1 << (8 * _SEED_BYTES):
            raise ValueError(f"Expected seed={value!r} in [0, 2**{8 * _SEED_BYTES}).")
        self.given = value
        secret = secrets.randbits(8 * _SEED_BYTES) if value is None else value
        self._secret = secret.to_bytes(_SEED_BYTES, "big")

    def __reduce__(self) -> Any:
        """A secret seed is neither copied, which would repeat its noise, nor written to a file."""
        if self.given is None:
            raise TypeError(
                "A secret seed cannot be copied or pickled. Save run.state_dict() instead of the run, and "
                "load it into a new one."
            )
        return Seed, (self.given,)

    def __repr__(self) -> str:
        return f"Seed({self.given})" if self.given is not None else "Seed(secret)"

    def replace(self, exchange: Callable[[bytes], bytes]) -> None:
        """Replaces the secret by what a function makes of it, before the first draw.

        The ranks of a data-parallel run take over that of one of them.
        """
        secret = exchange(self._secret)
        assert len(secret) == _SEED_BYTES
        self._secret = secret

    def words(self, purpose: str, *place: int, count: int) -> np.ndarray:
        """`count` 32-bit words that belong to this purpose and place alone."""
        name = purpose.encode()
        message = b"".join(
            [self._secret, len(name).to_bytes(4, "big"), name]
            + [number.to_bytes(8, "big") for number in place]
        )
        return np.frombuffer(hashlib.shake_256(message).digest(4 * count), dtype="<u4")

    def generator(self, purpose: str, *place: int) -> np.random.Generator:
        """A NumPy generator that belongs to this purpose and place alone."""
        words = self.words(purpose, *place, count=8)
        return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(words.tolist())))
