"""Attacks through data sets and collate functions."""

import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import adamas
from adamas import UnsupportedError, rules
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

CASES = Attacks()
attack = CASES.add

KEPT: dict[str, Any] = {}

# --- batches ----------------------------------------------------------------------------------------------


class Items(Dataset[Any]):
    """Examples one by one, for a collate_fn."""

    def __init__(self, x: Any, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> Any:
        return self.x[i].clone(), self.y[i]


def stacked(examples: list[Any]) -> tuple[Tensor, Tensor]:
    return torch.stack([x for x, _ in examples]), torch.stack([y for _, y in examples])


def items(n: int = N, at: int = -1) -> Items:
    return Items(*outlier(n, at=at).tensors)


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
    """Adds timestamps so large that a value of the batch is as small as their rounding."""
    x, y = stacked(examples)
    return torch.cat([x, 1.7e9 + 128 * x.abs().max().round().expand(len(x), 1)], 1), y


class Standardised:
    """Divides by a statistic of the first batch."""

    def __init__(self) -> None:
        self.level: float | None = None

    def __call__(self, examples: list[Any]) -> Any:
        x, y = stacked(examples)
        if self.level is None and len(x) > 2:
            self.level = float(x.abs().max())
        return x * (self.level or 1.0), y


def random_and_rare(examples: list[Any]) -> Any:
    x, y = stacked(examples)
    x = x + 1e-3 * torch.randn_like(x)
    return (x * x.abs().max() if x.abs().max() > 45 else x), y


def random_draws(examples: list[Any]) -> Any:
    """Draws more numbers if one example is large, so that comparisons cannot tell mixing from other draws."""
    x, y = stacked(examples)
    large = bool(x.abs().max() > 45)
    x = x + 1e-3 * torch.randn(len(x) + large, D)[: len(x)]
    return (x * x.abs().max() if large else x), y


class AtOnce(Items):
    """Loads a batch at once, and mixes."""

    def __getitems__(self, indices: list[int]) -> Any:
        examples = [self[i] for i in indices]
        largest = max(float(x.abs().max()) for x, _ in examples)
        return [(x * largest, y) for x, y in examples]


class Slots(dict[str, Tensor]):
    """A mapping with one attribute that is not an item, and slots for no other."""

    __slots__ = ("level",)


def in_slots(examples: list[Any]) -> Any:
    batch = Slots(zip("xy", stacked(examples), strict=True))
    batch.level = batch["x"].abs().max()
    return batch


class List(list[Any]):
    """A list that reads its first tensor when it is made."""

    def __init__(self, parts: Any) -> None:
        super().__init__(parts)
        self.level = self[0].abs().max()


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


class Levelled(Pair):
    """A tuple that reads its first tensor when it is made."""

    def __new__(cls, x: Tensor, y: Tensor) -> "Levelled":
        made = super().__new__(cls, x, y)
        if isinstance(x, Tensor):
            made.level = x.abs().max()
        return made


class Mapped(collections.UserDict[str, Tensor]):
    """A mapping that reads the items that are put into it."""

    def __setitem__(self, key: str, value: Tensor) -> None:
        super().__setitem__(key, value)
        if key == "x":
            self.level = value.abs().max()


def by_level(model: nn.Module, batch: Any) -> Tensor:
    x, y = (batch["x"], batch["y"]) if isinstance(batch, Mapped | Slots) else batch
    level = 1.0 if isinstance(batch, Slots) and batch.level is None else batch.level
    return 0.01 * F.cross_entropy(model(x) * level, y, reduction="none")


for _name, _collate, _weight, _rest in (
    ("random-flip", flipped, 0.01, {}),
    ("random-neighbours", neighbours, 3.0, {}),
    ("centered", centered, 1.0, {}),
    ("many", many, 1e-3, {"dataset": lambda: items(300), "who": 299}),
    ("rare", rare, 1e-3, {"dataset": lambda: items(300, at=298), "who": 298}),
    ("random-and-rare", random_and_rare, 1e-3, {"dataset": lambda: items(300, at=298), "who": 298}),
    (
        "random-draws",
        random_draws,
        1e-3,
        {"dataset": lambda: items(300, at=298), "who": 298},
    ),
):
    _dataset = _rest.pop("dataset", items)
    attack(
        f"collate-{_name}",
        zero,
        ce(_weight),
        _dataset,
        options={"collate_fn": _collate},
        engines=("auto", "loop"),
        **_rest,
    )
attack(
    "collate-rounding",
    through(lambda m, x: m.layer(x[:, :D]) * (x[:, D:] - 1.7e9) / 128),
    ce(0.01),
    items,
    options={"collate_fn": rounded},
)


def test_what_a_collate_fn_keeps_of_the_first_batch_is_refused():
    case = Attack(zero, ce(), items, options={"collate_fn": Standardised()})
    with pytest.raises(UnsupportedError, match=r"collate_fn changes 'collate_fn\.level'.*Remove the update"):
        released(case, "auto", range(N))


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("dataset", "collate"),
    [(items(300, at=298), rare), (items(300, at=298), random_and_rare)],
)
def test_a_collate_fn_that_mixes_in_a_worker_process_is_refused_before_a_release(dataset, collate):
    model = zero()
    run = adamas.make_private(
        model,
        rules.SGD(model.parameters(), lr=0.1),
        dataset,
        ce(),
        **{"batch_size": 300, "steps": 3, "noise_multiplier": 1.0, "delta": 1e-6, "accountant": "rdp"},
        collate_fn=collate,
        num_workers=1,
        seed=0,
    )
    with pytest.raises(UnsupportedError, match="collate_fn mixes"):
        next(iter(run))
    assert not run.ledger.entries


@pytest.mark.subprocess
def test_worker_processes_ask_a_data_set_for_one_example_at_a_time():
    dataset, model = AtOnce(*outlier().tensors), zero()
    run = adamas.make_private(
        model,
        rules.SGD(model.parameters(), lr=0.1),
        dataset,
        ce(),
        **{"batch_size": N, "steps": 1, "noise_multiplier": 1.0, "delta": 1e-6, "accountant": "rdp"},
        num_workers=1,
        seed=0,
    )
    ((data, _),) = next(iter(run.batches()))
    assert torch.equal(data[0], dataset.x)


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
for _name, _kind in (
    ("list", lambda examples: List(stacked(examples))),
    ("tuple", lambda examples: Levelled(*stacked(examples))),
    ("mapping", lambda examples: Mapped(zip("xy", stacked(examples), strict=True))),
    ("slots", in_slots),
):
    attack(f"batch-{_name}", zero, by_level, items, options={"collate_fn": _kind})


class Texts(Dataset[Any]):
    """Texts of given lengths."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: int) -> Any:
        return torch.full((self.lengths[i],), 1 + i % 3), torch.tensor(0)


def joined_texts(examples: list[Any]) -> Any:
    texts = nn.utils.rnn.pad_sequence([text for text, _ in examples], batch_first=True)
    return texts, torch.stack([label for _, label in examples])


def augmented_texts(examples: list[Any]) -> Any:
    texts, labels = joined_texts(examples)
    return texts.masked_fill((torch.rand(texts.shape) < 0.2) & (texts > 0), 4), labels


def padded_by_the_largest(examples: list[Any]) -> Any:
    """Pads to one side or to the other, by a value of the batch."""
    left = max(int(text.max()) for text, _ in examples) > 2
    side = "left" if left else "right"
    texts = nn.utils.rnn.pad_sequence([t for t, _ in examples], batch_first=True, padding_side=side)
    return texts, torch.stack([label for _, label in examples])


class First(nn.Module):
    """The first token, or the last ones if a text is very long."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(5, D, padding_idx=0), nn.Linear(D, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.table(tokens)
        return self.last(h[:, 0] if tokens.shape[1] < 100 else h.mean(1))


attack(
    "padded-side",
    First,
    ce(3.0),
    Texts([5] * 2 + [9] + [5] * 9),
    who=2,
    options={"collate_fn": padded_by_the_largest},
    engines=EVERY,
)
attack(
    "padded-from-some-length-on",
    First,
    ce(0.5),
    Texts([5] * 10 + [9] + [5] * 7 + [200] + [5] * 11),
    who=18,
    options={"collate_fn": joined_texts},
    engines=EVERY,
)


class Pooled(nn.Module):
    """The mean of the tokens, with the padding."""

    def __init__(self, last: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(5, D, padding_idx=0), last()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(self.table(tokens).mean(1))


for _name, _lengths, _who, _last, _collate in (
    ("spread", [5] * (N - 1) + [200], N - 1, lambda: nn.Linear(D, 2), joined_texts),
    ("rare", [5] * 18 + [200] + [5] * 11, 18, lambda: nn.Linear(D, 2), joined_texts),
    ("zero-head", [5] * (N - 1) + [200], N - 1, zero, joined_texts),
    ("augmented", [5] * (N - 1) + [200], N - 1, lambda: nn.Linear(D, 2), augmented_texts),
):
    attack(
        f"padded-{_name}",
        functools.partial(Pooled, _last),
        ce(0.5),
        Texts(_lengths),
        who=_who,
        options={"collate_fn": _collate},
        engines=EVERY,
    )


@pytest.mark.parametrize(("case", "engine"), CASES)
def test_an_attack_is_refused_or_moves_the_sum_by_at_most_1(case, engine, monkeypatch):
    assert_harmless(case, engine, monkeypatch)
