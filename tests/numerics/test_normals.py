"""Normal values from a ChaCha stream: the cipher matches published outputs, and the transform float64."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from adamas._numerics import compiled, normals, normals_kernel
from adamas._numerics.normals import GROUP, LANES
from adamas.noise import GaussianNoise

KEY = np.frombuffer(bytes(range(32)), dtype="<u4")

needs_numba = pytest.mark.skipif(compiled.numba is None, reason="Numba is missing")


def stream(key, first, blocks, rounds):
    """Returns the bytes of `blocks` blocks, in the order of the stream."""
    words = normals.words(key, first, -(-blocks // LANES), rounds)
    return words.transpose(0, 2, 1).reshape(-1, 16)[:blocks].astype("<u4").tobytes()


# The cipher ----------------------------------------------------------------------------------------------


def test_eight_rounds_give_the_published_stream():
    """The all-zero vector of the test vectors for ChaCha with 8 rounds and 256 bits (Strömbergson, 2013)."""
    published = (
        "3e00ef2f895f40d67f5bb8e81f09a5a12c840ec3ce9a7f3b181be188ef711a1e"
        "984ce172b9216f419f445367456d5619314a42a3da86b001387bfdb80e0cfe42"
    )
    assert stream(np.zeros(8, dtype=np.uint32), 0, 1, 8).hex() == published


@pytest.mark.parametrize("first", [0, 5, 2**32 - 100, 7 * 2**32])
def test_twenty_rounds_match_the_cryptography_package(first):
    ciphers = pytest.importorskip("cryptography.hazmat.primitives.ciphers")
    nonce = first.to_bytes(8, "little") + bytes(8)
    algorithm = ciphers.algorithms.ChaCha20(KEY.tobytes(), nonce)
    theirs = ciphers.Cipher(algorithm, mode=None).encryptor().update(bytes(64 * 100))
    assert stream(KEY, first, 100, 20) == theirs


def test_the_counter_has_64_bits():
    assert stream(KEY, 2**32, 2, 8) != stream(KEY, 0, 2, 8)
    assert stream(KEY, 2**32 - 1, 3, 8)[64:] == stream(KEY, 2**32, 2, 8)


# The transform -------------------------------------------------------------------------------------------


def test_float32_values_match_float64_to_a_few_roundings():
    uniform = normals.words(KEY, 0, 200)
    edges = np.array(
        [0, 1, 2, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1, 2**30, 3 * 2**30], np.uint32
    )
    uniform = uniform.reshape(200, 2, GROUP // 2).copy()
    uniform[0, :, :100] = np.array(np.meshgrid(edges, edges)).reshape(2, 100)
    values = normals.normals(uniform.reshape(200, 16, LANES)).reshape(200, 2, GROUP // 2)
    first, second = uniform[:, 0].astype(np.float64), uniform[:, 1]
    # u is rounded to float32, which near 1 moves ln u by up to 2^-25.
    u = np.float32((np.floor(first / 2) + 0.5) * 2.0**-31).astype(np.float64)
    r = np.sqrt(-2 * np.log(u))
    octant = (second << np.uint32(2)).view(np.int32).astype(np.float64) * (math.pi / 4 * 2.0**-31)
    turns = second >> np.uint32(30)  # the quarter turn nearest to the angle
    c, s = np.cos(octant) * np.where(turns > 1, -1, 1), np.sin(octant)
    expected = np.stack([np.where(turns % 2, s, c) * r, np.where(turns % 2, c, s) * r], 1)
    assert np.isfinite(values).all()
    assert np.abs(values - expected).max() < 2e-6
    assert np.abs(np.hypot(*np.moveaxis(values.astype(np.float64), 1, 0)) - r).max() < 2e-6


def test_all_directions_are_equally_likely_at_false_alarm_rate_1e_4():
    """Counts 1,024,000 pairs in 16 sectors. False-alarm rate: 1e-4. Rejects a sector that is 3% too full."""
    values = normals.normals(normals.words(KEY, 0, 2000)).reshape(-1, 2, GROUP // 2)
    angle = np.arctan2(values[:, 1], values[:, 0]).ravel()
    counts = np.histogram(angle, bins=16, range=(-math.pi, math.pi))[0]
    assert stats.chisquare(counts).pvalue > 1e-4
    counts[3] += counts[3] // 33
    assert stats.chisquare(counts, np.full(16, counts.sum() / 16)).pvalue < 1e-4


# The kernel ----------------------------------------------------------------------------------------------


@needs_numba
def test_the_kernel_is_available():
    assert normals_kernel.available()


@pytest.mark.slow
@needs_numba
@pytest.mark.parametrize("kernel", ["add", "add_scaled"])
def test_the_kernel_gives_the_same_bits_near_the_mean_and_in_the_tail(kernel):
    """Of 8 million values, 4.8 are expected in the tail beyond 5. It is empty with probability 1%."""
    found = []
    for first in range(0, 8192, 1024):
        results = []
        for draw in (getattr(normals_kernel, kernel), normals.add):
            out = np.linspace(-1, 1, 1024 * GROUP - 5, dtype=np.float32)
            far = np.zeros(16, dtype=np.int64)
            std = np.float32(0.3) if kernel == "add" else np.linspace(1, 2, len(out), dtype=np.float32)
            count = draw(out, KEY, std, first, far)
            results.append((out, far[:count]))
        (out, far), (expected, places) = results
        assert out.tobytes() == expected.tobytes()
        assert far.tolist() == places.tolist()
        found += far.tolist()
    assert found


@needs_numba
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, GROUP - 1, GROUP, 3 * GROUP + 5, 70_000])
def test_noise_is_the_same_without_numba(monkeypatch, n, dtype):
    expected = GaussianNoise(4).normal_(torch.empty(n, dtype=dtype), 0.5)
    monkeypatch.setattr(normals_kernel, "available", lambda: False)
    assert torch.equal(GaussianNoise(4).normal_(torch.empty(n, dtype=dtype), 0.5), expected)


@needs_numba
def test_a_kernel_that_gives_different_bits_is_not_used(monkeypatch):
    original = normals.normals
    monkeypatch.setattr(normals, "normals", lambda uniform: np.nextafter(original(uniform), np.float32(9)))
    assert not normals_kernel.available.__wrapped__()


def test_far_values_beyond_the_list_are_added_unchanged():
    values = np.array([6.0, 0.5, -7.0, 8.0])
    out, far = np.zeros(4), np.full(2, 99)
    assert normals.add_but_far(out, values.copy(), 2.0, far) == 2
    assert far.tolist() == [0, -3]
    assert out.tolist() == [0.0, 1.0, 0.0, 16.0]
