"""Attacks through state outside the model: globals, functions, modules, generators and the backward."""

import contextvars
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

from tests.support.attacks import SLOW, Attacks, Through, assert_harmless, ce
from tests.support.remembering_models import EARLY, kept_by, remembering

CASES = Attacks()
attack = CASES.add
KEPT: dict[str, Any] = {}


# --- variables ------------------------------------------------------------------------------------------


class Shared(Through):
    """A model with a running maximum in its class."""

    largest = 1.0


def shared() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        Shared.largest = max(Shared.largest, float(x.detach().abs().max()))
        return m.layer(x) * Shared.largest

    Shared.largest = 1.0
    return Shared(forward)


def _default(m: Any, value: float, kept: list[float] = [1.0]) -> float:  # noqa: B006
    kept[0] = max(kept[0], value)
    return kept[0]


def _function(m: Any, value: float) -> float:
    _function.largest = max(_function.largest, value)
    return float(_function.largest)


STORE = types.ModuleType("a_module_of_the_user")
sys.modules[STORE.__name__] = STORE


def _in_a_module(m: Any, value: float) -> float:
    STORE.largest = max(STORE.largest, value)
    return float(STORE.largest)


def _imported(m: Any, value: float) -> float:
    import a_module_of_the_user as store

    store.largest = max(store.largest, value)
    return float(store.largest)


LOCAL = threading.local()
VARIABLE: contextvars.ContextVar[float] = contextvars.ContextVar("largest", default=1.0)


def _local(m: Any, value: float) -> float:
    LOCAL.largest = max(getattr(LOCAL, "largest", 1.0), value)
    return float(LOCAL.largest)


def _variable(m: Any, value: float) -> float:
    VARIABLE.set(max(VARIABLE.get(), value))
    return VARIABLE.get()


# --- random generators ----------------------------------------------------------------------------------


OWN = random.Random(1)


def _seeded(seed: Callable[[int], Any], draw: Callable[[], float]) -> Callable[[], nn.Module]:
    """Makes a model whose random number depends on the seed that the previous example has set."""

    def largest(m: Any, value: float) -> float:
        drawn = draw()
        seed(round(value))
        return 100 * drawn

    return remembering(lambda m: seed(1), largest)


# --- the backward and hooks -----------------------------------------------------------------------------


class Remembering(torch.autograd.Function):
    """Keeps a number that only its backward changes."""

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


STATES = {
    "class": shared,
    "global": kept_by(lambda m: KEPT, "largest", lambda m: KEPT.update(largest=1.0)),
    "default": remembering(lambda m: _default.__defaults__[0].__setitem__(0, 1.0), _default),
    "function": remembering(lambda m: setattr(_function, "largest", 1.0), _function),
    "module": remembering(lambda m: setattr(STORE, "largest", 1.0), _in_a_module),
    "imported": remembering(lambda m: setattr(STORE, "largest", 1.0), _imported),
    "hook": by_a_hook,
    "backward": in_the_backward,
    "python-seed": _seeded(random.seed, random.random),
    "numpy-seed": _seeded(np.random.seed, np.random.random),
    "torch-seed": _seeded(torch.manual_seed, lambda: float(torch.initial_seed())),
    "own-seed": _seeded(OWN.seed, OWN.random),
    "thread-local": remembering(lambda m: setattr(LOCAL, "largest", 1.0), _local),
    "context-variable": remembering(lambda m: VARIABLE.set(1.0), _variable),
}
for _name, _model in STATES.items():
    attack(f"state-{_name}", _model, ce(0.01), EARLY, who=3, engines=SLOW)


OLD: list[Tensor] = []


def old_tensors(m: Any, x: Tensor) -> Tensor:
    OLD.append(x.detach())
    return m.layer(x) * (OLD[-2].abs().max() if len(OLD) > 6 else 1.0)


attack("state-old-tensors", lambda: OLD.clear() or Through(old_tensors), ce(0.01), EARLY, who=3, warm=8)


@pytest.mark.parametrize(("case", "engine"), CASES)
def test_an_attack_is_refused_or_moves_the_sum_by_at_most_1(case, engine, monkeypatch):
    assert_harmless(case, engine, monkeypatch)
