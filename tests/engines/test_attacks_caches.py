"""Attacks through what the caches of functools hold."""

import functools
import gc
from typing import Any

import pytest
import torch

import adamas
from adamas import rules
from tests.support.attacks import SLOW, Attacks, Through, assert_harmless, ce, gaussian
from tests.support.remembering_models import EARLY, remembering

CASES = Attacks()


class Kept:
    largest = 1.0


@functools.lru_cache
def limited() -> list[float]:
    return [1.0]


@functools.cache
def unlimited() -> list[float]:
    return [1.0]


@functools.cache
def named(key: str) -> Kept:
    return Kept()


@functools.lru_cache
def by_key(key: Kept) -> None:
    """Keeps its argument."""


def in_a_list(m: Any, value: float, cached: Any) -> float:
    cached()[0] = max(cached()[0], value)
    return float(cached()[0])


def in_an_object(m: Any, value: float) -> float:
    named("one").largest = max(named("one").largest, value)
    return float(named("one").largest)


def in_a_key(m: Any, value: float) -> float:
    key = next(one[0] for one in gc.get_referents(by_key) if isinstance(one, tuple))
    key.largest = max(key.largest, value)
    return float(key.largest)


CACHES = {
    "limited": (lambda m: limited().__setitem__(0, 1.0), lambda m, value: in_a_list(m, value, limited)),
    "unlimited": (lambda m: unlimited().__setitem__(0, 1.0), lambda m, value: in_a_list(m, value, unlimited)),
    "object": (lambda m: setattr(named("one"), "largest", 1.0), in_an_object),
    "key": (lambda m: (by_key.cache_clear(), by_key(Kept())), in_a_key),
}
for _name, _parts in CACHES.items():
    CASES.add(f"cache-{_name}", remembering(*_parts), ce(0.01), EARLY, who=3, engines=SLOW)


@pytest.mark.parametrize(("case", "engine"), CASES)
def test_an_attack_is_refused_or_moves_the_sum_by_at_most_1(case, engine, monkeypatch):
    assert_harmless(case, engine, monkeypatch)


@pytest.mark.parametrize("cached", [limited, unlimited])
def test_a_cached_function_is_not_charged_with_the_other_names_of_its_module(cached, monkeypatch):
    unread = (number for number in range(3))  # a state that cannot be compared, and that no function names
    monkeypatch.setitem(globals(), "UNREAD", unread)
    cached()[0] = 1.0
    model = Through(lambda m, x: m.layer(x) * cached()[0])
    rule, data = rules.SGD(model.parameters()), gaussian()
    terms = {"batch_size": len(data), "steps": 2, "noise_multiplier": 1.0, "delta": 1e-6}
    run = adamas.make_private(model, rule, data, ce(), engine="loop", seed=0, accountant="rdp", **terms)
    assert sum(1 for _ in run) == 2
    assert torch.isfinite(model.layer.weight).all()
