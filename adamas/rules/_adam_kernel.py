"""The corrected Adam step and MacAdam's spread in one pass over memory, compiled by Numba.

For float32 on a CPU. The equations are those of `adamas.rules._adam_family` and `_macadam_family`, for which
torch needs several passes. Results differ from torch's only in the last bits.
"""

import functools

import numpy as np
from torch import Tensor

from adamas._numerics.compiled import Array, compiled, numba
from adamas._numerics.threads import Call, share_out
from adamas.geometry import Value

# Fewest values for which another thread pays off.
_LEAST_SHARE = 1 << 15


@compiled
def _flat(
    theta: Array, g: Array, m: Array, v: Array, b1: np.float32, c1: np.float32, b2: np.float32,
    c2: np.float32, noise: np.float32, floor: np.float32, decay: np.float32, rate: np.float32, start: int,
    stop: int,
) -> None:  # fmt: skip
    """Steps with one variance and one floor for all coordinates; c is 1 - b."""
    part = slice(start, stop)
    theta, g, m, v = theta[part], g[part], m[part], v[part]
    for i in range(len(theta)):
        m_new = b1 * m[i] + c1 * g[i]  # (1)
        v_new = b2 * v[i] + c2 * (g[i] * g[i] - noise)  # (2), less (3)
        under = floor if v_new < floor else v_new  # keeps NaN
        theta[i] = theta[i] * decay - rate * m_new / np.sqrt(under)  # (5), (6)
        m[i], v[i] = m_new, v_new


@compiled
def _by_coordinate(
    theta: Array, g: Array, m: Array, v: Array, noise: Array, phi: Array, b1: np.float32, c1: np.float32,
    b2: np.float32, c2: np.float32, deviation: np.float32, least: np.float32, decay: np.float32,
    rate: np.float32, start: int, stop: int,
) -> None:  # fmt: skip
    """Steps with a variance per coordinate; the floor is `deviation` times its average, or `least`."""
    part = slice(start, stop)
    theta, g, m, v, noise, phi = theta[part], g[part], m[part], v[part], noise[part], phi[part]
    for i in range(len(theta)):
        m_new = b1 * m[i] + c1 * g[i]  # (1)
        v_new = b2 * v[i] + c2 * (g[i] * g[i] - noise[i])  # (2), less (3)
        floor = deviation * phi[i]
        floor = least if floor < least else floor
        under = floor if v_new < floor else v_new  # keeps NaN
        theta[i] = theta[i] * decay - rate * m_new / np.sqrt(under)  # (5), (6)
        m[i], v[i] = m_new, v_new


@compiled
def _spread(
    g: Array, m: Array, s: Array, std: Array, noise: Array, hat: np.float32, excess: np.float32,
    c1: np.float32, inverse: np.float32, current: np.float32, h1: np.float32, h2: np.float32, start: int,
    stop: int,
) -> None:  # fmt: skip
    """Updates MacAdam's estimate of the spread; `hat` is the factor from m to m-hat, `inverse` is 1/kappa."""
    part = slice(start, stop)
    g, m, s, std, noise = g[part], m[part], s[part], std[part], noise[part]
    for i in range(len(g)):
        away = g[i] - hat * m[i]
        u = away * away - excess * noise[i]  # (7), (9)
        s_new = s[i] + c1 * (u - s[i])  # (8)
        raw = s_new * inverse - current * noise[i]
        raw = h1 if raw < h1 else raw
        raw = h2 if raw > h2 else raw  # (10)
        std[i] = np.sqrt(raw)
        s[i] = s_new


@functools.cache
def available() -> bool:
    """Tells whether the kernels work; the first call compiles them or reads them from Numba's cache."""
    try:
        f, i = numba.float32, numba.int64
        _flat.compile((*[f[::1]] * 4, *[f] * 8, i, i))
        _by_coordinate.compile((*[f[::1]] * 6, *[f] * 8, i, i))
        _spread.compile((*[f[::1]] * 5, *[f] * 7, i, i))
    except Exception:  # whatever it is, torch can make the step
        return False
    return True


def call(
    buffers: list[Tensor],
    noise: Value,
    phi: Value,
    betas: tuple[float, float],
    deviation: float,
    least: float,
    decay: float,
    rate: float,
) -> Call:
    """Prepares a call for (1), (2), the right form of (5), and (6), to be run by `make`.

    Args:
        buffers: Parameters, gradient, first and second moment, flat.
        noise: The variance of the noise.
        phi: Its average (3), after this step.
        betas: Decays.
        deviation: Factor of phi that gives the floor of v - phi.
        least: Lower bound on the floor.
        decay: Factor of the parameters.
        rate: Factor of the quotient of m and the root.
    """
    arrays = [t.numpy() for t in buffers]
    b1, b2 = betas
    if isinstance(noise, Tensor):
        assert isinstance(phi, Tensor)
        arrays += [noise.view(-1).numpy(), phi.view(-1).numpy()]
        numbers = (b1, 1 - b1, b2, 1 - b2, deviation, least, decay, rate)
        function = _by_coordinate
    else:
        assert not isinstance(phi, Tensor)
        numbers = (b1, 1 - b1, b2, 1 - b2, noise, max(deviation * phi, least), decay, rate)
        function = _flat
    return function, (*arrays, *map(np.float32, numbers)), len(arrays[0])


def spread(buffers: list[Tensor], numbers: list[float]) -> Call:
    """Prepares a call for (7) to (10) of MacAdam, on flat gradient, m, s, std and noise."""
    arrays = [t.numpy() for t in buffers]
    return _spread, (*arrays, *map(np.float32, numbers)), len(arrays[0])


def make(calls: list[Call]) -> None:
    """Runs the calls on all threads, and waits for them."""
    for other in share_out(calls, _LEAST_SHARE):
        other.result()
