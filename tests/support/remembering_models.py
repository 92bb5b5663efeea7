"""Models that keep the largest value that they have seen, and multiply by it.

Attacks differ in where the value is kept.
"""

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from tests.support.attacks import Through, outlier

# The large example comes after the examples that are probed, and before most others.
EARLY = functools.partial(outlier, at=3)


def remembering(
    start: Callable[[Any], None], largest: Callable[[Any, float], float]
) -> Callable[[], nn.Module]:
    """Makes such models: `start` resets the state, `largest(model, value)` updates and returns it."""

    def forward(m: Any, x: Tensor) -> Tensor:
        return m.layer(x) * largest(m, float(x.detach().abs().max()))

    def make() -> nn.Module:
        model = Through(forward)
        start(model)
        return model

    return make


def named(name: str, start: Any, kind: Callable[[float], Any] = float) -> Callable[[], nn.Module]:
    """Keeps the value in an attribute of the model, as a given type."""

    def largest(m: Any, value: float) -> float:
        setattr(m, name, kind(max(float(getattr(m, name)), value)))
        return float(getattr(m, name))

    return remembering(lambda m: setattr(m, name, start), largest)


def kept_by(get: Callable[[Any], Any], key: Any, start: Callable[[Any], None]) -> Callable[[], nn.Module]:
    """Keeps the value under a key of the container that `get(model)` returns."""

    def largest(m: Any, value: float) -> float:
        get(m)[key] = max(get(m)[key], value)
        return float(get(m)[key])

    return remembering(start, largest)
