"""Secure noise whose secret is fixed, which only a test can have."""

from typing import Any

from adamas import Geometry, PrivateGradient
from adamas._streams import Seed
from adamas.secure_noise import SecureNoise
from tests.support.releases import released


def fixed(number: int) -> SecureNoise:
    """Makes secure noise with a known secret."""
    seed = Seed(secure=True)
    seed._secret = number.to_bytes(32, "big")
    return SecureNoise(seed)


def securely_released(
    geometry: Geometry, *, noise: SecureNoise | None = None, **options: Any
) -> PrivateGradient:
    """Makes one release, with secure noise of a fixed secret unless `noise` is given."""
    return released(geometry, noise=noise or fixed(0), **options)
