"""Converts a budget into a noise multiplier or a number of steps, and back.

All functions assume Poisson sampling with probability `sampling_rate`, `steps` releases of a Gaussian with
noise multiplier `noise_multiplier`, and add/remove adjacency. Every answer keeps its target: its epsilon was
computed, and is at most the target.
"""

import math
from collections.abc import Callable

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation
from scipy.optimize import brentq

from adamas import _validate
from adamas._words import limit, rounded_up
from adamas.accounting import composition
from adamas.accounting.events import Entries

_ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
_LEAST, _LARGEST = _validate.LEAST_NOISE_MULTIPLIER, _validate.LARGEST_NOISE_MULTIPLIER
_WIDE_BUDGET = 0.1  # a hundred coarse cells
_RESOLVED = 0.5  # the least share of a budget that the noise of RDP may use; usually it is 0.8 to 0.95
_LARGEST_STEPS = 2**24
_LARGEST_EPSILON = 1000.0
_TICKS = 10**4  # answers are multiples of 1e-4, or of 1e-4 of their power of 10


def epsilon(
    *,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    accountant: str = "pld",
) -> float:
    """Computes the epsilon of a number of steps.

    Example:
        >>> from adamas import calibrate
        >>> round(calibrate.epsilon(
        ...     noise_multiplier=0.5, sampling_rate=256 / 60000, steps=1175, delta=1e-5), 3)
        7.479
    """
    _validate.noise_multiplier(noise_multiplier=noise_multiplier)
    _validate.rate(sampling_rate=sampling_rate)
    _check_steps(steps)
    event = _step(noise_multiplier, sampling_rate)
    return composition.composed_epsilon([(event, steps)], delta, accountant)


def epsilon_curve(
    *, noise_multiplier: float, sampling_rate: float, steps: int, delta: float, points: int = 32
) -> np.ndarray:
    """Computes the epsilon after 1, ..., `steps` steps: see `adamas.accounting.composition.epsilon_curve`."""
    _validate.positive(noise_multiplier=noise_multiplier)
    _validate.noise_multiplier(noise_multiplier=noise_multiplier)
    _validate.rate(sampling_rate=sampling_rate)
    _check_steps(steps)
    event = _step(noise_multiplier, sampling_rate)
    return composition.epsilon_curve(event, steps, delta, points=points)


def noise_multiplier(
    *, epsilon: float, delta: float, sampling_rate: float, steps: int, accountant: str = "pld"
) -> float:
    """Finds the smallest noise multiplier whose epsilon is at most the target, rounded up to 4 decimals.

    From 10 on it is rounded up to 5 significant digits.

    Example:
        >>> from adamas import calibrate
        >>> calibrate.noise_multiplier(epsilon=3.0, delta=1e-5, sampling_rate=0.01, steps=1000)
        0.8136
    """
    _validate.rate(sampling_rate=sampling_rate)
    _check_steps(steps)
    return noise_multiplier_for(
        lambda z: dp_accounting.SelfComposedDpEvent(_step(z, sampling_rate), steps),
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
    )


def noise_multiplier_for(
    make_event: Callable[[float], dp_accounting.DpEvent],
    *,
    epsilon: float,
    delta: float,
    accountant: str = "pld",
    relation: NeighboringRelation = _ADD_REMOVE,
    before: Entries = (),
) -> float:
    """Finds `noise_multiplier` for any mechanism, given as the event that it makes with a multiplier.

    Args:
        make_event: Returns the event for a noise multiplier.
        epsilon: The target.
        delta: The delta of the target.
        accountant: A name in `ACCOUNTANTS`.
        relation: The neighbouring relation.
        before: Events that the target must pay for as well.
    """
    spent = [dp_accounting.SelfComposedDpEvent(event, count) for event, count in before]

    def whole(z: float) -> dp_accounting.DpEvent:
        event = make_event(z)
        return dp_accounting.ComposedDpEvent([*spent, event]) if spent else event

    def cost(z: float, coarse: bool | None) -> float:
        return composition.composed_epsilon([(whole(z), 1)], delta, accountant, relation, coarse=coarse)

    # Coarse cells bring the search near a budget that is wide against them; both are upper bounds.
    found = _least_noise_multiplier(
        cost, epsilon, delta, coarse=accountant == "pld" and epsilon > _WIDE_BUDGET
    )
    if accountant == "rdp" and epsilon * composition.RDP_ORDERS[-1] < 2 * math.log(1 / delta):
        _check_resolved(whole(found), found, epsilon, delta, relation)
    return found


def least_noise_multiplier(cost: Callable[[float], float], *, epsilon: float, delta: float) -> float:
    """Finds `noise_multiplier` for any epsilon that is given as a function of the multiplier.

    Example:
        >>> from adamas import calibrate
        >>> calibrate.least_noise_multiplier(lambda z: 10 / z, epsilon=4.0, delta=1e-5)
        2.5
    """
    return _least_noise_multiplier(lambda z, coarse: cost(z), epsilon, delta, coarse=False)


def _least_noise_multiplier(
    cost: Callable[[float, bool | None], float], epsilon: float, delta: float, *, coarse: bool
) -> float:
    """Searches; with `coarse` the first part of the search uses coarse answers."""
    _check_budget(epsilon, delta)

    def excess(z: float, coarse: bool | None = None) -> float:
        """Returns the logarithm of epsilon over the target, clamped to 50 either way."""
        return min(max(math.log(max(cost(z, coarse), 1e-300) / epsilon), -50.0), 50.0)

    if excess(_LARGEST) > 0:
        least = cost(_LARGEST, None)
        raise ValueError(
            f"Expected epsilon={epsilon!r} and delta={delta!r} to be within reach, but a noise multiplier of "
            f"{_LARGEST:.0f} is not enough: it gives epsilon={rounded_up(least)}. Raise epsilon or delta, "
            "make fewer steps, or use accountant='pld' if it is 'rdp'."
        )
    rough = coarse or None
    low, high = _bracket(lambda z: excess(z, rough), epsilon, delta)
    log_z = brentq(lambda x: excess(math.exp(x), rough), math.log(low), math.log(high), xtol=1e-3)
    # Then the smallest whole tick that keeps the budget.
    per_unit = _TICKS / 10 ** max(0, math.floor(log_z / math.log(10)))
    near = math.ceil(math.exp(log_z) * per_unit)
    low_tick, high_tick = near, near
    stride = max(1, near // 1000)
    while excess(high_tick / per_unit) > 0:
        low_tick, high_tick, stride = high_tick, high_tick + stride, 2 * stride
    while low_tick == high_tick or (low_tick > 0 and excess(low_tick / per_unit) <= 0):
        high_tick, low_tick, stride = low_tick, max(0, low_tick - stride), 2 * stride
    _, ticks = _bisected(lambda tick: excess(tick / per_unit) > 0, low_tick, high_tick)
    return float(ticks / per_unit)


def _bracket(excess: Callable[[float], float], epsilon: float, delta: float) -> tuple[float, float]:
    """Finds two noise multipliers, the first one too small and the second one not."""
    low = high = 1.0
    factor = 2.0
    while excess(high) > 0:
        low, high, factor = high, high * factor, factor**2
    while low == high or excess(low) <= 0:
        if low == _LEAST:
            raise ValueError(
                f"Expected epsilon={epsilon!r} and delta={delta!r} to need noise, but a multiplier of "
                f"{_LEAST} would do, and hide no record. Lower delta below the chance that a "
                "record takes part at all, or lower epsilon."
            )
        high, low, factor = low, max(low / factor, _LEAST), factor**2
    return low, high


def steps(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    sampling_rate: float,
    accountant: str = "pld",
) -> int:
    """Finds the largest number of steps whose epsilon is at most the target.

    Example:
        >>> from adamas import calibrate
        >>> calibrate.steps(epsilon=8.0, delta=1e-5, noise_multiplier=3.0,
        ...                 sampling_rate=4096 / 45000, accountant="rdp")
        2479
    """
    _validate.positive(noise_multiplier=noise_multiplier)
    _validate.noise_multiplier(noise_multiplier=noise_multiplier)
    _check_budget(epsilon, delta)
    _validate.rate(sampling_rate=sampling_rate)
    event = _step(noise_multiplier, sampling_rate)

    def affordable(count: int, coarse: bool | None = None) -> bool:
        entries = [(event, count)]
        return composition.composed_epsilon(entries, delta, accountant, coarse=coarse) <= epsilon

    if not affordable(1):
        raise ValueError(
            f"Expected epsilon={epsilon!r} to pay for one step at least; with noise_multiplier="
            f"{noise_multiplier!r} and sampling_rate={sampling_rate!r} it does not. Raise either "
            "epsilon or noise_multiplier."
        )
    low, high = 1, 2
    while affordable(high, coarse=True):
        low, high = high, high * 2
        if high > _LARGEST_STEPS:
            raise ValueError(f"Expected fewer than {_LARGEST_STEPS} steps to exhaust the budget.")
    low, high = _bisected(lambda count: affordable(count, coarse=True), low, high)
    # The fine answer is a little more than the coarse one.
    stride = max(1, low // 200)
    while affordable(high):
        low, high = high, high + stride
        stride *= 2
    return _bisected(affordable, low, high)[0]


def _bisected(good: Callable[[int], bool], low: int, high: int) -> tuple[int, int]:
    """Finds neighbours (n, n + 1), n good and n + 1 not, between a good `low` and a `high` that is not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return low, high


def _check_budget(epsilon: float, delta: float) -> None:
    _validate.positive(epsilon=epsilon)
    if epsilon > _LARGEST_EPSILON:
        raise ValueError(
            f"Expected epsilon={epsilon!r} <= {limit(_LARGEST_EPSILON)}: a larger epsilon is not a "
            "meaningful guarantee."
        )
    _validate.delta(delta=delta)


def _check_resolved(
    event: dp_accounting.DpEvent,
    noise_multiplier: float,
    epsilon: float,
    delta: float,
    relation: NeighboringRelation,
) -> None:
    """Raises if RDP asks for far more noise than the budget needs.

    Its orders end, so its epsilon does not fall below about log(1 / delta) over the largest order, whatever
    the noise: 0.103 for delta = 1e-5. To keep a budget close to that would take noise that leaves no signal.
    """
    if not composition.supports("pld", event, relation):
        return
    true = composition.composed_epsilon([(event, 1)], delta, "pld", relation)
    if true < epsilon * _RESOLVED:
        raise ValueError(
            f"Expected a budget that accountant='rdp' can resolve, got epsilon={epsilon!r} at "
            f"delta={delta!r}: its orders end at {composition.RDP_ORDERS[-1]:g}, so it asks for a noise "
            f"multiplier of {noise_multiplier:g}, with which epsilon is {rounded_up(true)}. Use "
            "accountant='pld'."
        )


def _check_steps(steps: int) -> None:
    _validate.count(steps=steps)
    if steps > _LARGEST_STEPS:
        raise ValueError(f"Expected steps={steps!r} <= {_LARGEST_STEPS}, more than any training takes.")


def _step(noise_multiplier: float, sampling_rate: float) -> dp_accounting.DpEvent:
    return dp_accounting.PoissonSampledDpEvent(sampling_rate, dp_accounting.GaussianDpEvent(noise_multiplier))
