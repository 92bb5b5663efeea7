"""A `collate_fn` is refused unless it returns tensors whose rows depend on one example each."""

import random
from collections import UserDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset, default_collate

from adamas import UnsupportedError
from adamas._guards.collate import check_collate
from adamas._nests import batch_length, map_tensors
from tests.support.collated import stacked
from tests.support.every_engine import every_engine
from tests.support.sgd_runs import make_run
from tests.support.small_runs import finish, loss, make_data

N = 40


# --- entries that are not tensors -----------------------------------------------------------------------


class WithExtra(TensorDataset):
    """Examples with an extra entry, which `extra` computes from the index."""

    def __init__(self, extra):
        super().__init__(*make_data(N).tensors)
        self._extra = extra

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return {"x": x, "y": y, "extra": self._extra(index)}


def loss_by_extra(model, batch):
    values = [len(value) if isinstance(value, str) else float(value) for value in batch["extra"]]
    return F.cross_entropy(model(batch["x"]), batch["y"], reduction="none") * sum(values)


def as_list(examples):
    x, y = (torch.stack([example[name] for example in examples]) for name in "xy")
    return {"x": x, "y": y, "extra": [example["extra"] for example in examples]}


@every_engine
@pytest.mark.parametrize(
    ("extra", "kind"), [(lambda i: "a" * i, "str"), (float, "float"), (np.float32, "float32")]
)
def test_an_entry_that_is_not_a_tensor_is_refused_with_its_place(engine, extra, kind):
    with pytest.raises(UnsupportedError, match=rf"batch\['extra'\]\[0\] is of type {kind}.*collate_fn"):
        make_run(nn.Linear(5, 2), loss_by_extra, WithExtra(extra), collate_fn=as_list, engine=engine)


@every_engine
def test_an_entry_that_is_not_a_tensor_is_refused_in_later_batches_too(engine):
    with_array = False

    def collate(examples):
        x, y = (torch.stack(part) for part in zip(*examples, strict=True))
        return x, y, np.ones(len(examples)) if with_array else None

    run = make_run(nn.Linear(5, 2), lambda m, b: loss(m, b[:2]), collate_fn=collate, engine=engine)
    with_array = True
    with pytest.raises(UnsupportedError, match=r"batch\[2\] is of type ndarray"):
        finish(run)
    assert run.steps_done == 0
    assert not run.ledger.entries


def test_attributes_of_a_batch_do_not_reach_the_loss():
    class Encoding(UserDict):
        texts = None

    class Named(dict):
        texts = None

    for kind in (Encoding, Named):
        batch = kind(x=torch.ones(3, 2))
        batch.texts = ["a", "b", "c"]
        mapped = map_tensors(lambda x: x[:1], batch)
        assert type(mapped) is kind
        assert mapped["x"].shape == (1, 2)
        assert mapped.texts is None
        assert batch.texts == ["a", "b", "c"]
    assert batch_length([torch.ones(3), None, {"y": torch.zeros(3, 1)}]) == 3


# --- rows that depend on several examples ---------------------------------------------------------------


class Sentences(Dataset):
    """Sentences of one to six words, each a vector of five numbers, with a label."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        words = make_data(6 * N).tensors[0].view(N, 6, 5)[index, : 1 + index % 6]
        return words, make_data(N).tensors[1][index]


def mixup(examples):
    x, y = stacked(examples)
    share = np.random.beta(0.4, 0.4)
    return share * x + (1 - share) * x[torch.randperm(len(x))], y


def sometimes_mixup(examples):
    return mixup(examples) if random.random() < 0.4 else stacked(examples)


def repeated(examples):
    return stacked(examples[:1] * len(examples))


def centered(examples):
    x, y = stacked(examples)
    return (x - x.mean(0) if len(x) > 1 else x), y


def numbered(examples):
    x, y = stacked(examples)
    return torch.cat([x[:, :4], torch.arange(len(x))[:, None].float()], 1), y


def padded(examples, value=0.0, left=False):
    x, y = zip(*examples, strict=True)
    side = "left" if left else "right"
    words = nn.utils.rnn.pad_sequence(x, batch_first=True, padding_value=value, padding_side=side)
    mask = nn.utils.rnn.pad_sequence([torch.ones(len(w)) for w in x], batch_first=True, padding_side=side)
    return {"words": words, "mask": mask, "y": torch.stack(y), "nothing": None}


def padded_by_statistics(examples):
    return padded(examples, float(max(x.max() for x, _ in examples)))


def padded_by_others(examples):
    batch = padded(examples)
    longest = max((x for x, _ in examples), key=len)
    batch["words"] = torch.where(batch["mask"][..., None] > 0, batch["words"], longest)
    return batch


def noisy(examples):
    x, y = stacked(examples)
    return x + 0.1 * torch.randn_like(x), y


def words_loss(model, batch):
    words = (batch["words"] * batch["mask"][..., None]).sum(1)
    return F.cross_entropy(model(words), batch["y"], reduction="none")


@pytest.mark.parametrize("collate", [mixup, sometimes_mixup, repeated, centered, numbered])
@pytest.mark.parametrize("changes", [{}, {"micro_batch_size": 4}, {"engine": "loop"}])
def test_a_collate_fn_that_mixes_examples_is_refused(collate, changes):
    model = nn.Linear(5, 2)
    state = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()
    with pytest.raises(UnsupportedError, match=r"collate_fn mixes .* row of batch\[0\] .*__getitem__"):
        make_run(model, collate_fn=collate, **changes)
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])
    assert np.random.get_state()[1].tolist() == state[2]


@pytest.mark.parametrize("collate", [padded_by_statistics, padded_by_others])
def test_padding_that_depends_on_the_other_examples_is_refused(collate):
    with pytest.raises(UnsupportedError, match=r"row of batch\['words'\]"):
        make_run(nn.Linear(5, 2), words_loss, Sentences(), collate_fn=collate)


def test_a_collate_fn_that_adds_an_entry_to_larger_batches_is_refused():
    def collate(examples):
        x, y = stacked(examples)
        return {"x": x, "y": y} | ({"more": x} if len(x) > 3 else {})

    with pytest.raises(UnsupportedError, match=r"batch\['more'\]"):
        make_run(nn.Linear(5, 2), lambda model, b: loss(model, (b["x"], b["y"])), collate_fn=collate)


def without_nan(batch):
    return batch | {"words": batch["words"].nan_to_num()}


@pytest.mark.parametrize("value", [0.0, -100.0, float("nan")])
@pytest.mark.parametrize("left", [False, True])
def test_a_collate_fn_that_stacks_and_pads_is_accepted(value, left):
    def collate(examples):
        return padded(examples, value, left)

    run = make_run(
        nn.Linear(5, 2), lambda m, b: words_loss(m, without_nan(b)), Sentences(), collate_fn=collate
    )
    finish(run)


@pytest.mark.parametrize("collate", [stacked, noisy, default_collate])
def test_a_collate_fn_that_only_stacks_or_adds_noise_is_accepted(collate):
    finish(make_run(nn.Linear(5, 2), collate_fn=collate))


def test_a_collate_fn_is_checked_on_any_batch():
    def collate(examples):
        x, y = stacked(examples)
        return (x.flip(0) if len(x) == 20 else x), y

    run = make_run(nn.Linear(5, 2), collate_fn=collate)
    check_collate(run.loader, range(19))
    with pytest.raises(UnsupportedError, match="collate_fn"):
        check_collate(run.loader, range(20))


def test_an_order_of_the_parts_that_the_first_example_decides_is_refused():
    class Keyed(Dataset):
        def __len__(self):
            return N

        def __getitem__(self, index):
            names = ("b", "a") if index == 0 else ("a", "b")
            return {name: torch.tensor(float(index)) for name in names}

    def of_the_first(examples):
        return {name: torch.stack([example[name] for example in examples]) for name in examples[0]}

    def of_their_own(examples):
        return {name: torch.stack([example[name] for example in examples]) for name in "ab"}

    def squares(model, batch):
        first, second = batch.values()  # by their places
        return model((first + 1)[:, None]).squeeze(1) * second

    with pytest.raises(UnsupportedError, match="mixes the examples of a batch"):
        make_run(nn.Linear(1, 1), squares, Keyed(), collate_fn=of_the_first)
    assert finish(make_run(nn.Linear(1, 1), squares, Keyed(), collate_fn=of_their_own)).isfinite().all()
