"""Attacks through data sets and collate functions."""

import collections
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from adamas import UnsupportedError
from tests.support.attacks import (
    EVERY,
    Attack,
    Attacks,
    D,
    N,
    assert_harmless,
    ce,
    outlier,
    released,
    through,
    times,
    zero,
)
from tests.support.collated import stacked
from tests.support.sgd_runs import make_run

CASES = Attacks()
attack = CASES.add
KEPT: dict[str, Any] = {}


# --- data -----------------------------------------------------------------------------------------------


class Items(Dataset[Any]):
    """A data set that returns one example at a time."""

    def __init__(self, x: Any, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> Any:
        return self.x[i].clone(), self.y[i]


class AtOnce(Items):
    """A data set that also loads a batch at once, and then mixes it."""

    def __getitems__(self, indices: list[int]) -> Any:
        examples = [self[i] for i in indices]
        largest = max(float(x.abs().max()) for x, _ in examples)
        return [(x * largest, y) for x, y in examples]


def items(n: int = N, at: int = -1) -> Items:
    return Items(*outlier(n, at=at).tensors)


# --- values of a batch that depend on other examples ------------------------------------------------------


def flipped(examples: list[Any]) -> Any:
    x, y = stacked(examples)
    return (-x if torch.rand(()) < 0.5 else x) * x.abs().max(), y


def neighbours(examples: list[Any]) -> Any:
    x, y = stacked(examples)
    x = x + 1e-3 * torch.randn_like(x)
    return 0.5 * x + 0.5 * x.roll(1, 0), y


def centered(examples: list[Any]) -> Any:
    x, y = stacked(examples)
    return x - x.mean(0), y


def beside_timestamps(examples: list[Any]) -> Any:
    x, y = stacked(examples)
    return torch.cat([x * x.abs().max(), torch.full((len(x), 1), 1.7e9)], 1), y


def many(examples: list[Any]) -> Any:
    x, y = stacked(examples)
    return (x * x.abs().max() if len(examples) > 256 else x), y


def rare(examples: list[Any]) -> Any:
    x, y = stacked(examples)
    return (x * x.abs().max() if x.abs().max() > 45 else x), y


def left_behind(examples: list[Any]) -> Any:
    x, y = stacked(examples)
    KEPT["level"] = float(x.abs().max())
    return x, y


def rounded(examples: list[Any]) -> Any:
    """Hides a value of the batch in the rounding of large timestamps."""
    x, y = stacked(examples)
    return torch.cat([x, 1.7e9 + 128 * x.abs().max().round().expand(len(x), 1)], 1), y


def random_and_rare(examples: list[Any]) -> Any:
    x, y = stacked(examples)
    x = x + 1e-3 * torch.randn_like(x)
    return (x * x.abs().max() if x.abs().max() > 45 else x), y


def random_draws(examples: list[Any]) -> Any:
    """Draws more numbers if one example is large, so that mixing looks like other random draws."""
    x, y = stacked(examples)
    large = bool(x.abs().max() > 45)
    x = x + 1e-3 * torch.randn(len(x) + large, D)[: len(x)]
    return (x * x.abs().max() if large else x), y


FEW = {"dataset": items}
LAST = {"dataset": lambda: items(300), "who": 299}
NEAR_THE_END = {"dataset": lambda: items(300, at=298), "who": 298}
for _name, _collate, _weight, _data in (
    ("random-flip", flipped, 0.01, FEW),
    ("random-neighbours", neighbours, 3.0, FEW),
    ("centered", centered, 1.0, FEW),
    ("many", many, 1e-3, LAST),
    ("rare", rare, 1e-3, NEAR_THE_END),
    ("random-and-rare", random_and_rare, 1e-3, NEAR_THE_END),
    ("random-draws", random_draws, 1e-3, NEAR_THE_END),
):
    attack(
        f"collate-{_name}",
        zero,
        ce(_weight),
        **_data,
        options={"collate_fn": _collate},
        engines=("auto", "loop"),
    )
attack(
    "collate-rounding",
    through(lambda m, x: m.layer(x[:, :D]) * (x[:, D:] - 1.7e9) / 128),
    ce(0.01),
    items,
    options={"collate_fn": rounded},
)
attack(
    "collate-timestamps",
    through(lambda m, x: m.layer(x[:, :D])),
    ce(0.01),
    items,
    options={"collate_fn": beside_timestamps},
    engines=EVERY,
)
attack(
    "collate-global",
    zero,
    times(lambda x: KEPT["level"]),
    items,
    options={"collate_fn": left_behind},
    engines=EVERY,
)


# --- containers that read their tensors -------------------------------------------------------------------


class Slots(dict[str, Tensor]):
    """A mapping with one slot besides its items."""

    __slots__ = ("level",)


def in_slots(examples: list[Any]) -> Any:
    batch = Slots(zip("xy", stacked(examples), strict=True))
    batch.level = batch["x"].abs().max()
    return batch


class ListWithLevel(list[Any]):
    """A list that reads its first tensor when it is created."""

    def __init__(self, parts: Any) -> None:
        super().__init__(parts)
        self.level = self[0].abs().max()


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


class TupleWithLevel(Pair):
    """A tuple that reads its first tensor when it is created."""

    def __new__(cls, x: Tensor, y: Tensor) -> "TupleWithLevel":
        made = super().__new__(cls, x, y)
        if isinstance(x, Tensor):
            made.level = x.abs().max()
        return made


class MappingWithLevel(collections.UserDict[str, Tensor]):
    """A mapping that reads the tensors that it is given."""

    def __setitem__(self, key: str, value: Tensor) -> None:
        super().__setitem__(key, value)
        if key == "x":
            self.level = value.abs().max()


def by_level(model: nn.Module, batch: Any) -> Tensor:
    x, y = (batch["x"], batch["y"]) if isinstance(batch, MappingWithLevel | Slots) else batch
    level = 1.0 if isinstance(batch, Slots) and batch.level is None else batch.level
    return 0.01 * F.cross_entropy(model(x) * level, y, reduction="none")


for _name, _kind in (
    ("list", lambda examples: ListWithLevel(stacked(examples))),
    ("tuple", lambda examples: TupleWithLevel(*stacked(examples))),
    ("mapping", lambda examples: MappingWithLevel(zip("xy", stacked(examples), strict=True))),
    ("slots", in_slots),
):
    attack(f"batch-{_name}", zero, by_level, items, options={"collate_fn": _kind})


@pytest.mark.parametrize(("case", "engine"), CASES)
def test_an_attack_is_refused_or_moves_the_sum_by_at_most_1(case, engine, monkeypatch):
    assert_harmless(case, engine, monkeypatch)


# --- state, and worker processes --------------------------------------------------------------------------


class ScaledByFirst:
    """Multiplies by a statistic of the first batch."""

    def __init__(self) -> None:
        self.level: float | None = None

    def __call__(self, examples: list[Any]) -> Any:
        x, y = stacked(examples)
        if self.level is None and len(x) > 2:
            self.level = float(x.abs().max())
        return x * (self.level or 1.0), y


def test_a_collate_fn_that_keeps_a_statistic_of_the_first_batch_is_refused():
    case = Attack(zero, ce(), items, options={"collate_fn": ScaledByFirst()})
    with pytest.raises(UnsupportedError, match=r"collate_fn changes 'collate_fn\.level'.*Remove the update"):
        released(case, "auto", range(N))


@pytest.mark.subprocess
@pytest.mark.parametrize("collate", [rare, random_and_rare])
def test_a_collate_fn_that_mixes_in_a_worker_process_is_refused_before_a_release(collate):
    options = {"batch_size": 300, "steps": 3, "delta": 1e-6, "accountant": "rdp", "num_workers": 1}
    run = make_run(zero(), ce(), items(300, at=298), collate_fn=collate, **options)
    with pytest.raises(UnsupportedError, match="collate_fn mixes"):
        next(iter(run))
    assert not run.ledger.entries


@pytest.mark.subprocess
def test_worker_processes_load_one_example_at_a_time():
    dataset = AtOnce(*outlier().tensors)
    run = make_run(zero(), ce(), dataset, batch_size=N, steps=1, delta=1e-6, accountant="rdp", num_workers=1)
    ((data, _),) = next(iter(run.batches()))
    assert torch.equal(data[0], dataset.x)
