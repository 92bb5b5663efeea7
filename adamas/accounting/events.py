"""Counts, compares and simplifies events of `dp_accounting`, and writes them as plain data."""

import inspect
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import dp_accounting

from adamas import _validate
from adamas.accounting.terms import SampledTermsDpEvent
from adamas.sampling import joint_noise_multiplier

Entries: TypeAlias = Sequence[tuple[dp_accounting.DpEvent, int]]
"""Events, each with how many times it happened."""

_LEAST, _LARGEST = _validate.LEAST_NOISE_MULTIPLIER, _validate.LARGEST_NOISE_MULTIPLIER

_EVENTS: dict[str, type[dp_accounting.DpEvent]] = {
    cls.__name__: cls
    for cls in vars(dp_accounting.dp_event).values()
    if isinstance(cls, type) and issubclass(cls, dp_accounting.DpEvent)
} | {SampledTermsDpEvent.__name__: SampledTermsDpEvent}


def append(
    entries: list[tuple[dp_accounting.DpEvent, int]], event: dp_accounting.DpEvent, count: int = 1
) -> None:
    """Appends an event, or adds to the count of the last one if they are equal."""
    if entries and entries[-1][0] == event:
        count += entries.pop()[1]
    entries.append((event, count))


def counted(entries: Entries) -> Counter[str]:
    """Counts each event."""
    counts: Counter[str] = Counter()
    for event, count in entries:
        counts[repr(event)] += count
    return counts


def within(some: Mapping[str, int], others: Mapping[str, int]) -> bool:
    """Tells whether none of the first counts is above that of the others."""
    return all(count <= others.get(event, 0) for event, count in some.items())


def without(entries: Entries, others: Entries) -> Entries:
    """Subtracts other events from these."""
    left = counted(others)
    result = []
    for event, count in entries:
        common = min(count, left[repr(event)])
        left[repr(event)] -= common
        if count > common:
            result.append((event, count - common))
    return result


def sampled_gaussian(event: dp_accounting.DpEvent) -> tuple[float, float | None]:
    """Returns the sampling rate and noise multiplier of a Gaussian event; None for any other event."""
    rate = 1.0
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        rate, event = event.sampling_probability, event.event
    return rate, event.noise_multiplier if isinstance(event, dp_accounting.GaussianDpEvent) else None


def joined(event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    """Replaces several Gaussians on one sampled batch by the one that they amount to, which PLD can bound."""
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        return dp_accounting.SelfComposedDpEvent(joined(event.event), event.count)
    if isinstance(event, dp_accounting.ComposedDpEvent):
        return dp_accounting.ComposedDpEvent([joined(inner) for inner in event.events])
    if isinstance(event, dp_accounting.PoissonSampledDpEvent) and isinstance(
        event.event, dp_accounting.ComposedDpEvent
    ):
        inner = event.event.events
        if all(isinstance(e, dp_accounting.GaussianDpEvent) for e in inner):
            z = joint_noise_multiplier([e.noise_multiplier for e in inner])
            return dp_accounting.PoissonSampledDpEvent(
                event.sampling_probability, dp_accounting.GaussianDpEvent(z)
            )
    return event


def single_events(entries: Entries) -> list[tuple[dp_accounting.DpEvent, int]] | None:
    """Breaks entries down into single events, each with its count; None if one of them hides nothing.

    Gaussians without sampling are joined into one. Noise above `_validate.LARGEST_NOISE_MULTIPLIER` is
    counted as that multiplier, which costs more.
    """
    counts: dict[dp_accounting.DpEvent, int] = {}
    plain: dict[float, int] = {}
    stack = list(entries)
    while stack:
        event, count = stack.pop()
        if isinstance(event, dp_accounting.SelfComposedDpEvent):
            stack.append((event.event, event.count * count))
            continue
        if isinstance(event, dp_accounting.ComposedDpEvent):
            stack += [(inner, count) for inner in event.events]
            continue
        rate, z = sampled_gaussian(event)
        if isinstance(event, dp_accounting.NoOpDpEvent) or rate == 0 or count == 0:
            continue
        if isinstance(event, dp_accounting.NonPrivateDpEvent) or _noise(event) < _LEAST:
            return None
        if z is not None:
            z = min(z, _LARGEST)
            if rate == 1:
                plain[z] = plain.get(z, 0) + count
                continue
            event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(z))
        if isinstance(event, dp_accounting.dp_event.MixtureOfGaussiansDpEvent):  # lists are no keys
            event = type(event)(
                event.standard_deviation, tuple(event.sensitivities), tuple(event.sampling_probs)
            )
        counts[event] = counts.get(event, 0) + count
    if plain:
        joint = math.fsum(n / z**2 for z, n in plain.items()) ** -0.5
        counts[dp_accounting.GaussianDpEvent(joint)] = 1
    return list(counts.items())


def _noise(event: dp_accounting.DpEvent) -> float:
    """Returns the least Gaussian noise in an event, in units of the sensitivity; infinity if it has none."""
    inner = [event.event] if hasattr(event, "event") else getattr(event, "events", [])
    if inner:
        return min(map(_noise, inner))
    if isinstance(event, dp_accounting.dp_event.MixtureOfGaussiansDpEvent):
        largest = max(map(abs, event.sensitivities), default=0.0)
        return float(event.standard_deviation / largest) if largest else math.inf
    if isinstance(event, SampledTermsDpEvent):
        return event.noise_multiplier / (2 * event.terms)
    gaussians = (dp_accounting.GaussianDpEvent, dp_accounting.dp_event.TruncatedSubsampledGaussianDpEvent)
    return float(event.noise_multiplier) if isinstance(event, gaussians) else math.inf


def encode(value: Any) -> Any:
    """Writes an event as plain data that JSON can hold."""
    if isinstance(value, dp_accounting.DpEvent):
        return {"kind": type(value).__name__} | {
            name: encode(getattr(value, name)) for name in inspect.signature(type(value)).parameters
        }
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return value


def decode(value: Any) -> Any:
    """Reads what `encode` wrote."""
    if isinstance(value, dict):
        if value.get("kind") not in _EVENTS:
            raise ValueError(f"Expected a known event, found kind={value.get('kind')!r}.")
        fields = {name: decode(item) for name, item in value.items() if name != "kind"}
        return _EVENTS[value["kind"]](**fields)
    if isinstance(value, list):
        return [decode(item) for item in value]
    return value
