"""A harness for attacks on the promise that one record moves the whitened sum by at most 1.

An attack is a model, a loss, a collate_fn or a data set that somebody could write in good faith, and one
record that would show in the sum. The engine must refuse it, or the sum must move by at most 1. A run has
sampling rate 1 and silent noise, and its sums with and without the record are compared. The attacks are in
`tests/engines/test_attacks_*.py`. This module has the data, models and losses that several of them use.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import adamas
from adamas import UnsupportedError, rules
from adamas.check.replay import Silent, joined, release_of, whitened_sums
from adamas.engines.base import Materialized
from tests.support import through as function_models

N, D = 12, 4
BIG = 50.0
LIMIT = 1 + 3e-6  # 1e-6, and rounding in float32 sums of a dozen examples
FAST = ("auto", "bookkeeping")
SLOW = ("auto", "loop")
EVERY = ("auto", "bookkeeping", "vmap", "loop")


@dataclass
class Attack:
    """One attack.

    Attributes:
        model: Makes the model, and resets any state that the attack keeps elsewhere.
        loss: Loss with one value per example.
        dataset: The data, or a function that makes it.
        who: The record that is removed.
        sets: The two sets of records to compare. By default, all records and all but `who`.
        warm: Releases on all records beforehand. They change no parameter.
        cache: Maximum bytes of gradients that the slow engines keep.
        rule: Makes the rule.
        options: Further arguments of `make_private`.
    """

    model: Callable[[], nn.Module]
    loss: Any
    dataset: Any
    who: int = N - 1
    sets: tuple[Sequence[int], Sequence[int]] | None = None
    warm: int = 0
    cache: int | None = None
    rule: Any = rules.SGD
    options: dict[str, Any] = field(default_factory=dict)


class Attacks(list[Any]):
    """The attacks of one family, as parameters of a test."""

    def add(
        self,
        name: str,
        model: Any,
        loss: Any,
        dataset: Any,
        *,
        engines: Sequence[str] = FAST,
        options: dict[str, Any] | None = None,
        **rest: Any,
    ) -> None:
        """Adds a case for each engine."""
        case = Attack(model, loss, dataset, options=options or {}, **rest)
        for engine in engines:
            self.append(pytest.param(case, engine, id=f"{name}-{engine}"))


def released(case: Attack, engine: str, indices: Sequence[int]) -> Tensor:
    """Returns the whitened sum that a fresh run releases on some records."""
    torch.manual_seed(0)
    dataset = case.dataset() if callable(case.dataset) else case.dataset
    model = case.model()
    n = len(dataset)
    run = adamas.make_private(
        model,
        case.rule(model.parameters(), lr=0.1),
        dataset,
        case.loss,
        engine=engine,
        seed=0,
        **{"batch_size": n, "steps": 30, "noise_multiplier": 1.0, "delta": 1e-6, "accountant": "rdp"}
        | case.options,
    )
    run.noise = Silent(run.noise.seed)
    for step in range(case.warm):
        release_of(run, range(n), step)
    return joined(whitened_sums(run, release_of(run, indices, case.warm), run.geometry()))


def influence(case: Attack, engine: str) -> float:
    """Returns how far the record moves the whitened sum."""
    n = len(case.dataset() if callable(case.dataset) else case.dataset)
    sets = case.sets or (range(n), [i for i in range(n) if i != case.who])
    together, without = (released(case, engine, indices) for indices in sets)
    return float((together - without).norm())


def assert_harmless(case: Attack, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asserts that the engine refuses the attack, or that the record moves the sum by at most 1."""
    if case.cache is not None:
        monkeypatch.setattr(Materialized, "cache_bytes", case.cache)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            moved = influence(case, engine)
        except UnsupportedError:
            return
    assert moved <= LIMIT


# --- shared data, models and losses ----------------------------------------------------------------------


def outlier(
    n: int = N, *, at: int = -1, size: Sequence[int] = (D,), label: int = 0, big: float = BIG
) -> TensorDataset:
    """Makes equal examples, one of which is large."""
    x, y = torch.ones(n, *size), torch.zeros(n, dtype=torch.long)
    x[at], y[at] = big, label
    return TensorDataset(x, y)


def gaussian(n: int = N, *size: int, classes: int = 2, seed: int = 0) -> TensorDataset:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *(size or (D,)), generator=draw)
    return TensorDataset(x, torch.randint(0, classes, (n,), generator=draw))


def zero(inputs: int = D, outputs: int = 2) -> nn.Linear:
    """Makes a linear layer of zeros, whose gradients are easy to predict."""
    layer = nn.Linear(inputs, outputs)
    for p in layer.parameters():
        nn.init.zeros_(p)
    return layer


class Through(function_models.Through):
    """A model written as one function, with a `layer` of zeros."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__(forward, layer=zero(), **parts)


def through(forward: Callable[[Any, Tensor], Tensor], **parts: Callable[[], Any]) -> Callable[[], nn.Module]:
    """Makes a function that builds the model, with fresh parts at each call."""
    return lambda: Through(forward, **{name: part() for name, part in parts.items()})


def ce(weight: float = 1.0) -> Any:
    return lambda model, batch: weight * F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def times(number: Callable[[Tensor], Any], weight: float = 0.01) -> Any:
    """Makes a loss that multiplies the logits by a number computed from the whole batch."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return weight * F.cross_entropy(model(x) * number(x), y, reduction="none")

    return loss


def level(x: Tensor) -> Tensor:
    return x.detach().abs().max()
