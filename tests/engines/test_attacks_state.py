"""Attacks through state that outlives a forward."""

import array
import collections
import contextvars
import functools
import itertools
import random
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.attacks import (
    SLOW,
    Attacks,
    D,
    Through,
    assert_harmless,
    ce,
    outlier,
    through,
)

CASES = Attacks()
attack = CASES.add

# --- state ------------------------------------------------------------------------------------------------

EARLY = functools.partial(outlier, at=3)  # not among the examples of a probe, and before the others
KEPT: dict[str, Any] = {}


def remembering(
    start: Callable[[Any], None], largest: Callable[[Any, float], float]
) -> Callable[[], nn.Module]:
    """A model that multiplies by the largest value that it has seen."""

    def forward(m: Any, x: Tensor) -> Tensor:
        return m.layer(x) * largest(m, float(x.detach().abs().max()))

    def make() -> nn.Module:
        model = Through(forward)
        start(model)
        return model

    return make


def _named(name: str, start: Any, kind: Callable[[float], Any] = float) -> Callable[[], nn.Module]:
    def largest(m: Any, value: float) -> float:
        setattr(m, name, kind(max(float(getattr(m, name)), value)))
        return float(getattr(m, name))

    return remembering(lambda m: setattr(m, name, start), largest)


def _in(get: Callable[[Any], Any], key: Any, start: Callable[[Any], None]) -> Callable[[], nn.Module]:
    def largest(m: Any, value: float) -> float:
        get(m)[key] = max(get(m)[key], value)
        return float(get(m)[key])

    return remembering(start, largest)


class Bag:
    """An object with attributes."""


class Shared(Through):
    """A running maximum as an attribute of the class."""

    largest = 1.0


def shared() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        Shared.largest = max(Shared.largest, float(x.detach().abs().max()))
        return m.layer(x) * Shared.largest

    Shared.largest = 1.0
    return Shared(forward)


def _set(m: Any, value: float) -> float:
    m.seen.add(round(value))
    return float(max(m.seen))


def _counted(m: Any, value: float) -> float:
    m.seen[round(value)] += 1
    return float(max(m.seen))


def _generated() -> Any:
    largest = 1.0
    while True:
        largest = max(largest, (yield largest))


def _generator(m: Any) -> None:
    m.seen = _generated()
    next(m.seen)


def _queued(m: Any, value: float) -> float:
    m.queue.data[5, 1 + m.at % 4000] = value
    m.at += 1
    return float(m.queue[5].max())


def _queue(m: Any) -> None:
    m.register_buffer("queue", torch.ones(128, 4096))
    m.at = 0


def _deep(m: Any) -> None:
    m.bag = Bag()
    m.bag.inner = Bag()
    m.bag.inner.largest = 1.0


UNWATCHED = {
    "integer": _named("seen", 1, int),
    "string": _named("seen", "1", str),
    "class": shared,
    "global": _in(lambda m: KEPT, "largest", lambda m: KEPT.update(largest=1.0)),
    "set": remembering(lambda m: setattr(m, "seen", {1}), _set),
    "counter": remembering(lambda m: setattr(m, "seen", collections.Counter({1: 1})), _counted),
    "object-in-an-object": _in(lambda m: vars(m.bag.inner), "largest", _deep),
    "list-in-a-mapping": _in(
        lambda m: m.seen["a"]["b"], 0, lambda m: setattr(m, "seen", {"a": {"b": [1.0]}})
    ),
    "array-in-lists": _in(lambda m: m.seen[0][0], 0, lambda m: setattr(m, "seen", [[np.ones(1)]])),
    "generator": remembering(_generator, lambda m, value: m.seen.send(value)),
    "queue-by-data": remembering(_queue, _queued),
}


def _previous(m: Any, value: float) -> float:
    """Returns the value of the example before; the last example restores the first state."""
    before, m.seen = m.seen, round(value)
    return float(before)


class Slotted:
    __slots__ = ("largest",)


def _slotted(m: Any) -> None:
    m.bag = Slotted()
    m.bag.largest = 1.0


def _in_slots(m: Any, value: float) -> float:
    m.bag.largest = max(m.bag.largest, value)
    return float(m.bag.largest)


def _default(m: Any, value: float, kept: list[float] = [1.0]) -> float:  # noqa: B006
    kept[0] = max(kept[0], value)
    return kept[0]


def _function(m: Any, value: float) -> float:
    _function.largest = max(_function.largest, value)
    return float(_function.largest)


@functools.lru_cache
def _box() -> list[float]:
    return [1.0]


def _cached(m: Any, value: float) -> float:
    _box()[0] = max(_box()[0], value)
    return _box()[0]


STORE = types.ModuleType("a_module_of_the_users")
sys.modules[STORE.__name__] = STORE


def _in_a_module(m: Any, value: float) -> float:
    STORE.largest = max(STORE.largest, value)
    return float(STORE.largest)


def _imported(m: Any, value: float) -> float:
    import a_module_of_the_users as store

    store.largest = max(store.largest, value)
    return float(store.largest)


def _on_a_tensor(m: Any, value: float) -> float:
    m.layer.weight.largest = max(m.layer.weight.largest, value)
    return float(m.layer.weight.largest)


def _gradient(m: Any, value: float) -> float:
    m.goal.grad.data.clamp_(min=value)
    return float(m.goal.grad)


def _with_gradient(m: Any) -> None:
    m.goal = torch.ones((), requires_grad=True)
    m.goal.grad = torch.ones(())
    m.goal.requires_grad_(False)


def _seeded(seed: Callable[[int], Any], draw: Callable[[], float]) -> Callable[[], nn.Module]:
    """Makes a model whose draw depends on the seed that the example before has set."""

    def largest(m: Any, value: float) -> float:
        drawn = draw()
        seed(round(value))
        return 100 * drawn

    return remembering(lambda m: seed(1), largest)


OWN = random.Random(1)
LOCAL = threading.local()
VARIABLE: contextvars.ContextVar[float] = contextvars.ContextVar("largest", default=1.0)


def _local(m: Any, value: float) -> float:
    LOCAL.largest = max(getattr(LOCAL, "largest", 1.0), value)
    return float(LOCAL.largest)


def _variable(m: Any, value: float) -> float:
    VARIABLE.set(max(VARIABLE.get(), value))
    return VARIABLE.get()


def _in_bytes(m: Any, value: float) -> float:
    m.seen[0] = max(m.seen[0], round(value))
    return float(m.seen[0])


def _counts(m: Any, value: float) -> float:
    while next(m.seen) < value:
        pass
    return float(m.seen.__reduce__()[1][0])


class Remembering(torch.autograd.Function):
    """Keeps a number in its backward, out of sight of the forward."""

    largest = 1.0

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: float) -> Tensor:
        ctx.value = value
        return x * Remembering.largest

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        Remembering.largest = max(Remembering.largest, ctx.value)
        return g * Remembering.largest, None


def in_the_backward() -> nn.Module:
    Remembering.largest = 1.0
    return Through(lambda m, x: Remembering.apply(m.layer(x), float(x.detach().abs().max())))


def by_a_hook() -> nn.Module:
    kept = [1.0]
    model = Through(lambda m, x: m.layer(x) * kept[0])
    model.layer.register_forward_hook(
        lambda m, x, out: kept.__setitem__(0, max(kept[0], float(x[0].abs().max())))
    )
    return model


UNWATCHED |= {
    "previous": remembering(lambda m: setattr(m, "seen", 1), _previous),
    "slots": remembering(_slotted, _in_slots),
    "default": remembering(lambda m: _default.__defaults__[0].__setitem__(0, 1.0), _default),
    "function": remembering(lambda m: setattr(_function, "largest", 1.0), _function),
    "cache": remembering(lambda m: _box().__setitem__(0, 1.0), _cached),
    "module": remembering(lambda m: setattr(STORE, "largest", 1.0), _in_a_module),
    "imported": remembering(lambda m: setattr(STORE, "largest", 1.0), _imported),
    "tensor": remembering(lambda m: setattr(m.layer.weight, "largest", 1.0), _on_a_tensor),
    "gradient": remembering(_with_gradient, _gradient),
    "python-seed": _seeded(random.seed, random.random),
    "numpy-seed": _seeded(np.random.seed, np.random.random),
    "torch-seed": _seeded(torch.manual_seed, lambda: float(torch.initial_seed())),
    "own-seed": _seeded(OWN.seed, OWN.random),
    "thread-local": remembering(lambda m: setattr(LOCAL, "largest", 1.0), _local),
    "context-variable": remembering(lambda m: VARIABLE.set(1.0), _variable),
    "iterator": remembering(lambda m: setattr(m, "seen", itertools.count()), _counts),
    "bytes": remembering(lambda m: setattr(m, "seen", bytearray([1])), _in_bytes),
    "deque": _in(lambda m: m.seen, 0, lambda m: setattr(m, "seen", collections.deque([1]))),
    "array": _in(lambda m: m.seen, 0, lambda m: setattr(m, "seen", array.array("d", [1.0]))),
    "backward": in_the_backward,
    "hook": by_a_hook,
}
for _name, _model in UNWATCHED.items():
    attack(
        f"state-{_name}",
        _model,
        ce(0.01),
        EARLY,
        who=3,
        engines=SLOW,
    )
WATCHED = {
    "number": _named("seen", 1.0),
    "list": _in(lambda m: m.seen, 0, lambda m: setattr(m, "seen", [1.0])),
    "mapping": _in(lambda m: m.seen, "a", lambda m: setattr(m, "seen", {"a": 1.0})),
    "array": _in(lambda m: m.seen, 0, lambda m: setattr(m, "seen", np.ones(1))),
    "object": _in(
        lambda m: vars(m.bag),
        "largest",
        lambda m: setattr(m, "bag", Bag()) or vars(m.bag).update(largest=1.0),
    ),
}
for _name, _model in WATCHED.items():
    attack(f"state-{_name}", _model, ce(0.01), EARLY, who=3, engines=SLOW)


def bank(m: Any, x: Tensor) -> Tensor:
    m.bank = torch.cat([m.bank[1:], x.detach().mean(0, keepdim=True)])
    return m.layer(x) * m.bank.max()


def queue_in_place(m: Any, x: Tensor) -> Tensor:
    m.bank[0] = x.detach().max()
    return m.layer(x) * m.bank.max()


OLD: list[Tensor] = []


def old_tensors(m: Any, x: Tensor) -> Tensor:
    OLD.append(x.detach())
    return m.layer(x) * (OLD[-2].abs().max() if len(OLD) > 6 else 1.0)


attack("state-bank", through(bank, bank=lambda: torch.ones(4, D)), ce(0.01), EARLY, who=3)
attack("state-bank-in-place", through(queue_in_place, bank=lambda: torch.ones(4)), ce(0.01), EARLY, who=3)
attack("state-old-tensors", lambda: OLD.clear() or Through(old_tensors), ce(0.01), EARLY, who=3, warm=8)


@pytest.mark.parametrize(("case", "engine"), CASES)
def test_an_attack_is_refused_or_moves_the_sum_by_at_most_1(case, engine, monkeypatch):
    assert_harmless(case, engine, monkeypatch)
