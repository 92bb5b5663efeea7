"""Attacks through state that the model itself holds from one forward to the next."""

import array
import collections
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.attacks import SLOW, Attacks, D, assert_harmless, ce, through
from tests.support.remembering_models import EARLY, kept_by, named, remembering

CASES = Attacks()
attack = CASES.add


class Bag:
    """An object with attributes."""


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


def _previous(m: Any, value: float) -> float:
    """Returns the value of the previous example; the last example restores the initial state."""
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


def _in_bytes(m: Any, value: float) -> float:
    m.seen[0] = max(m.seen[0], round(value))
    return float(m.seen[0])


def _counts(m: Any, value: float) -> float:
    while next(m.seen) < value:
        pass
    return float(m.seen.__reduce__()[1][0])


STATES = {
    "integer": named("seen", 1, int),
    "string": named("seen", "1", str),
    "set": remembering(lambda m: setattr(m, "seen", {1}), _set),
    "counter": remembering(lambda m: setattr(m, "seen", collections.Counter({1: 1})), _counted),
    "object-in-an-object": kept_by(lambda m: vars(m.bag.inner), "largest", _deep),
    "list-in-a-mapping": kept_by(
        lambda m: m.seen["a"]["b"], 0, lambda m: setattr(m, "seen", {"a": {"b": [1.0]}})
    ),
    "array-in-lists": kept_by(lambda m: m.seen[0][0], 0, lambda m: setattr(m, "seen", [[np.ones(1)]])),
    "generator": remembering(_generator, lambda m, value: m.seen.send(value)),
    "queue-by-data": remembering(_queue, _queued),
    "previous": remembering(lambda m: setattr(m, "seen", 1), _previous),
    "slots": remembering(_slotted, _in_slots),
    "tensor": remembering(lambda m: setattr(m.layer.weight, "largest", 1.0), _on_a_tensor),
    "gradient": remembering(_with_gradient, _gradient),
    "iterator": remembering(lambda m: setattr(m, "seen", itertools.count()), _counts),
    "bytes": remembering(lambda m: setattr(m, "seen", bytearray([1])), _in_bytes),
    "deque": kept_by(lambda m: m.seen, 0, lambda m: setattr(m, "seen", collections.deque([1]))),
    "array": kept_by(lambda m: m.seen, 0, lambda m: setattr(m, "seen", array.array("d", [1.0]))),
    "number": named("seen", 1.0),
    "list": kept_by(lambda m: m.seen, 0, lambda m: setattr(m, "seen", [1.0])),
    "mapping": kept_by(lambda m: m.seen, "a", lambda m: setattr(m, "seen", {"a": 1.0})),
    "numpy-array": kept_by(lambda m: m.seen, 0, lambda m: setattr(m, "seen", np.ones(1))),
    "object": kept_by(
        lambda m: vars(m.bag),
        "largest",
        lambda m: setattr(m, "bag", Bag()) or vars(m.bag).update(largest=1.0),
    ),
}
for _name, _model in STATES.items():
    attack(f"state-{_name}", _model, ce(0.01), EARLY, who=3, engines=SLOW)


def bank(m: Any, x: Tensor) -> Tensor:
    m.bank = torch.cat([m.bank[1:], x.detach().mean(0, keepdim=True)])
    return m.layer(x) * m.bank.max()


def queue_in_place(m: Any, x: Tensor) -> Tensor:
    m.bank[0] = x.detach().max()
    return m.layer(x) * m.bank.max()


attack("state-bank", through(bank, bank=lambda: torch.ones(4, D)), ce(0.01), EARLY, who=3)
attack("state-bank-in-place", through(queue_in_place, bank=lambda: torch.ones(4)), ce(0.01), EARLY, who=3)


@pytest.mark.parametrize(("case", "engine"), CASES)
def test_an_attack_is_refused_or_moves_the_sum_by_at_most_1(case, engine, monkeypatch):
    assert_harmless(case, engine, monkeypatch)
