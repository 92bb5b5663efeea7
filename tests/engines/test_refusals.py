"""Models and losses that would break the promise in some batch are refused, on every engine.

The promise: adding or removing any one record moves the whitened sum by at most 1.
"""

import copy
import random
import re
import types
import warnings
from collections import UserDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.data import Dataset, TensorDataset, default_collate

import adamas
from adamas import Geometry, UnsupportedError, clipped_sum, rules
from adamas._guards.collate import check_collate
from adamas._nests import batch_length, map_tensors
from adamas.check.replay import Silent, joined, release_of, whitened_sums
from adamas.engines import ENGINES, Stacked
from adamas.noise import GaussianNoise
from adamas.privatize import privatize

N = 40


def every_engine(test):
    return pytest.mark.parametrize("engine", ENGINES)(test)


def tensors(n=N):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(n, 5, generator=generator), torch.randint(2, (n,), generator=generator)


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def make_run(model, the_loss=loss, data=None, **changes):
    settings = {"batch_size": 12, "steps": 6, "noise_multiplier": 1.0, "delta": 1e-3, "seed": 0} | changes
    rule = rules.SGD(model.parameters(), lr=0.1)
    return adamas.make_private(model, rule, data or TensorDataset(*tensors()), the_loss, **settings)


def train(run):
    for _ in run:
        pass
    return run


def influence(run, indices, one):
    """Returns how far the whitened sum moves when one record is removed."""
    run.noise = Silent(0)
    sums = [
        joined(whitened_sums(run, release_of(run, rows, 0), run.geometry()))
        for rows in (indices, [i for i in indices if i != one])
    ]
    return float((sums[0] - sums[1]).norm())


# --- parameters -----------------------------------------------------------------------------------------


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))

    def forward(self, x):
        return (self.layer(x) * self.phase).abs()


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_a_complex_parameter_is_refused_by_name(engine):
    with pytest.raises(UnsupportedError, match=r"'phase' .* is complex .* torch.view_as_complex"):
        make_run(Complex(), engine=engine)


def test_a_complex_parameter_is_refused_by_the_geometry():
    p = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(UnsupportedError, match="view_as_complex"):
        clipped_sum({p: torch.zeros(4, 3, dtype=torch.complex64)}, Geometry.ball([p]))


@every_engine
def test_a_complex_parameter_that_is_frozen_or_held_as_two_real_ones_trains(engine):
    class Real(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 2)
            self.phase = nn.Parameter(torch.ones(2, 2))

        def forward(self, x):
            return torch.view_as_real(self.layer(x) * torch.view_as_complex(self.phase)).sum(-1)

    model = Complex()
    model.phase.requires_grad_(False)
    train(make_run(model, engine=engine))
    train(make_run(Real(), engine="loop"))


# --- batches --------------------------------------------------------------------------------------------


class Weighted(TensorDataset):
    """Examples with an attribute besides their tensors."""

    def __init__(self, beside):
        super().__init__(*tensors())
        self._beside = beside

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return {"x": x, "y": y, "beside": self._beside(index)}


def beside_loss(model, batch):
    values = [len(value) if isinstance(value, str) else float(value) for value in batch["beside"]]
    return F.cross_entropy(model(batch["x"]), batch["y"], reduction="none") * sum(values)


def as_list(examples):
    x, y = (torch.stack([example[name] for example in examples]) for name in "xy")
    return {"x": x, "y": y, "beside": [example["beside"] for example in examples]}


@every_engine
@pytest.mark.parametrize(
    ("beside", "kind"), [(lambda i: "a" * i, "str"), (float, "float"), (np.float32, "float32")]
)
def test_what_is_no_tensor_is_refused_with_its_place(engine, beside, kind):
    with pytest.raises(UnsupportedError, match=rf"batch\['beside'\]\[0\] is of type {kind}.*collate_fn"):
        make_run(nn.Linear(5, 2), beside_loss, Weighted(beside), collate_fn=as_list, engine=engine)


@every_engine
def test_what_is_no_tensor_is_refused_in_every_batch_of_a_run(engine):
    loud = False

    def collate(examples):
        x, y = (torch.stack(part) for part in zip(*examples, strict=True))
        return x, y, np.ones(len(examples)) if loud else None

    run = make_run(nn.Linear(5, 2), collate_fn=collate, engine=engine)
    loud = True
    with pytest.raises(UnsupportedError, match=r"batch\[2\] is of type ndarray"):
        train(run)
    assert run.steps_done == 0
    assert not run.ledger.entries


def test_what_is_beside_the_items_of_a_batch_does_not_reach_the_loss():
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


# --- weights --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch_size", [1, 1000, 10**6, 10**9])
def test_weights_that_float32_cannot_hold_are_zero(dtype, batch_size):
    p = nn.Parameter(torch.zeros(5, dtype=dtype))
    for norm in (*np.geomspace(1e37, 7.99e37, 60), *np.geomspace(1e25, 1e37, 60)):
        rows = torch.full((1, 5), float(norm) / 5**0.5, dtype=dtype)
        released = privatize(
            [(Stacked({p: rows}), 0)],
            Geometry.ball([p]),
            noise_multiplier=0.0,
            expected_batch_size=batch_size,
            noise=GaussianNoise(0),
            charge=lambda _: (),
        )
        length = float((released.mean[p].double() * batch_size).norm())
        assert length <= 1 + 1e-6
        assert length == 0 or length == pytest.approx(1, rel=1e-6)


# --- state ----------------------------------------------------------------------------------------------


class Box:
    """An object without visible attributes."""

    __slots__ = ("mean",)

    def __init__(self):
        self.mean = torch.zeros(5)


class Stateful(nn.Module):
    """A linear layer whose forward updates a state by the mean of its inputs, once it is armed."""

    def __init__(self, update, least=1):
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.frozen = nn.Parameter(torch.zeros(5), requires_grad=False)
        self.register_buffer("running", torch.zeros(5))
        self.register_buffer("long", torch.zeros(40_000))
        self.state, self.array, self.level = torch.zeros(5), np.zeros(5), 0.5
        self.table, self.history = {"mean": torch.zeros(5)}, [torch.zeros(5)]
        self.box = Box()
        self.stats = types.SimpleNamespace(mean=torch.zeros(5), level=0.5)
        self.update, self.least, self.armed, self.calls = update, least, False, 0

    def get_extra_state(self):
        return {"mean": self.box.mean}

    def set_extra_state(self, state):
        self.box.mean = state["mean"]

    def forward(self, x):
        self.calls += self.armed
        if self.armed and len(x) >= self.least:
            with torch.no_grad():
                self.update(self, x.mean(0))
        return self.layer(x)


def _extra(m, mean):
    m.box.mean = m.box.mean + mean


def _list_item(m, mean):
    m.history[0] = mean


UPDATES = {
    "parameter 'frozen'": lambda m, mean: m.frozen.mul_(0.9).add_(mean),
    "parameter 'frozen' by data": lambda m, mean: m.frozen.data.copy_(mean),
    "parameter 'frozen' by memory": lambda m, mean: setattr(m.frozen, "data", mean.clone()),
    "parameter 'layer.bias' by data": lambda m, mean: m.layer.bias.data.copy_(mean[:2]),
    "buffer 'running'": lambda m, mean: m.running.mul_(0.9).add_(mean),
    "buffer 'running' by data": lambda m, mean: m.running.data.copy_(mean),
    "buffer 'running' exchanged": lambda m, mean: setattr(m, "running", mean),
    "buffer 'long'": lambda m, mean: m.long[7:12].copy_(mean),
    "buffer 'long' by data": lambda m, mean: m.long.data.add_(mean.sum()),
    "buffer 'fresh'": lambda m, mean: m.register_buffer("fresh", mean),
    "attribute 'state'": lambda m, mean: setattr(m, "state", 0.9 * m.state + mean),
    "attribute 'state' by data": lambda m, mean: m.state.data.copy_(mean),
    "attribute 'fresh'": lambda m, mean: setattr(m, "fresh", mean),
    "attribute 'array'": lambda m, mean: np.copyto(m.array, mean.numpy()),
    "attribute 'level'": lambda m, mean: setattr(m, "level", 0.9 * m.level + float(mean.sum())),
    "attribute \"table['mean']\"": lambda m, mean: m.table["mean"].add_(mean),
    "attribute \"table['fresh']\"": lambda m, mean: m.table.update(fresh=mean),
    "attribute 'history[0]'": _list_item,
    "attribute 'history[1]'": lambda m, mean: m.history.append(mean),
    "attribute 'stats.mean'": lambda m, mean: m.stats.mean.add_(mean),
    "attribute 'stats.level'": lambda m, mean: setattr(m.stats, "level", m.stats.level + float(mean.sum())),
    "attribute 'stats'": lambda m, mean: setattr(m, "stats", types.SimpleNamespace(mean=mean, level=0.5)),
    "extra state 'Stateful'": _extra,
}


def contents(model):
    plain = {name: value for name, value in model.__dict__.items() if not name.startswith("_")}
    return copy.deepcopy((dict(model.named_parameters()), dict(model.named_buffers()), plain, model.box.mean))


def assert_same(model, before):
    for mine, theirs in zip(contents(model), before, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0) if isinstance(mine, torch.Tensor) else None
        if isinstance(mine, dict):
            assert mine.keys() == theirs.keys()
            for name, value in mine.items():
                if isinstance(value, torch.Tensor | np.ndarray | float | list | dict):
                    torch.testing.assert_close(value, theirs[name], rtol=0, atol=0)


@every_engine
@pytest.mark.parametrize("what", UPDATES)
def test_a_forward_that_changes_state_in_a_later_batch_is_refused(engine, what):
    model = Stateful(UPDATES[what])
    run = make_run(model, engine=engine)
    next(iter(run))
    spent, before = run.ledger.entries, {name: value.clone() for name, value in model.named_buffers()}
    weights = [p.detach().clone() for p in model.parameters()]
    model.armed = True
    pattern = f"The forward changes the {what.split(' by ')[0].split(' exch')[0]}, so"
    with pytest.raises(UnsupportedError, match=re.escape(pattern) if engine == "loop" else None):
        next(iter(run))
    assert run.ledger.entries == spent
    assert run.steps_done == 1
    if engine == "vmap" and what in ("parameter 'frozen' by memory", "extra state 'Stateful'"):
        return  # the model holds a tensor of vmap's, which is no longer usable
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    for name, value in model.named_buffers():
        assert torch.equal(value, before[name]) or name == "long"
    model.armed = False
    train(run)


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
@pytest.mark.parametrize("what", UPDATES)
def test_a_forward_that_changes_state_is_refused_when_the_run_is_made_and_the_model_left_alone(engine, what):
    model = Stateful(UPDATES[what])
    model.armed = True
    before = contents(model)
    with pytest.raises(UnsupportedError):
        make_run(model, engine=engine)
    assert model.calls == 0
    by_memory = what == "parameter 'frozen' by memory" and engine in ("auto", "vmap")
    if (
        not what.startswith("extra") and not by_memory
    ):  # the memory of vmap's tensors stays with the parameter
        assert_same(model, before)


def test_a_buffer_that_only_larger_batches_change_is_refused():
    model = Stateful(UPDATES["buffer 'running'"], least=4)
    model.armed = True
    with pytest.raises(UnsupportedError):
        train(make_run(model, engine="bookkeeping"))
    assert not model.running.any()


class ActNorm(nn.Module):
    """Takes its scale and shift from the first batch that it sees."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.shift = nn.Parameter(torch.zeros(5))
        self.initialized = False

    def forward(self, x):
        if not self.initialized:
            self.shift.data.copy_(-x.detach().mean(0))
            self.initialized = True
        return self.layer(x + self.shift)


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_an_initialisation_from_the_data_is_refused_and_undone(engine):
    model = ActNorm()
    with pytest.raises(UnsupportedError):
        make_run(model, engine=engine)
    assert not model.initialized
    assert not model.shift.any()
    model.initialized = True
    train(make_run(model, engine=engine))


def test_the_state_of_a_module_that_the_loss_holds_is_watched_too():
    teacher = Stateful(UPDATES["buffer 'running'"])

    def distilled(model, batch):
        return (model(batch[0]) - teacher(batch[0]).detach()).square().sum(1)

    run = make_run(nn.Linear(5, 2), distilled, engine="loop")
    teacher.armed = True
    with pytest.raises(UnsupportedError, match=r"buffer 'loss\.teacher\.running'"):
        train(run)


def test_the_state_of_a_loss_that_is_an_object_is_watched_too():
    class Scaled:
        def __init__(self):
            self.level, self.armed = 1.0, False

        def __call__(self, model, batch):
            if self.armed:
                self.level = 0.9 * self.level + 0.1 * float(batch[0].abs().mean())
            return self.level * loss(model, batch)

        def method(self, model, batch):
            return self(model, batch)

    for part, pattern in ((lambda a: a, r"loss\.level"), (lambda a: a.method, r"loss\.__self__\.level")):
        scaled = Scaled()
        run = make_run(nn.Linear(5, 2), part(scaled), engine="loop")
        scaled.armed = True
        with pytest.raises(UnsupportedError, match=pattern):
            train(run)


class Counting(nn.Module):
    """State that reveals nothing about the data: counters, flags, constants that are recomputed."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.calls, self.warm, self.sizes, self.mask = 0, False, [], torch.ones(5)

    def forward(self, x):
        self.calls, self.warm = self.calls + 1, True
        self.sizes.append(5)
        self.mask = torch.ones(5)
        return self.layer(x * self.mask)


def old_weight_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(5, 4)), nn.Tanh(), nn.Linear(4, 2))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.layer = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(self.cells(x.unsqueeze(-1))[0][:, -1])


ACCEPTED = {
    "counters": Counting,
    "dropout": lambda: nn.Sequential(nn.Linear(5, 4), nn.Dropout(), nn.Linear(4, 2)),
    "frozen batch norm": lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 2)),
    "weight norm of a hook": old_weight_norm,
    "pruned": lambda: nn.Sequential(prune.l1_unstructured(nn.Linear(5, 2), "weight", 0.5)),
    "parametrized": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 2))),
    "LSTM": Recurrent,
    "not a number": lambda: nn.Sequential(nn.Linear(5, 2), Spoilt()),
}


class Spoilt(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("unused", torch.full((3,), torch.nan))
        self.value = float("nan")

    def forward(self, x):
        self.value = float("nan")
        return x


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        *(("auto", kind) for kind in ACCEPTED),
        *(("loop", kind) for kind in ACCEPTED if kind != "counters"),  # which may hold data there
        *(("vmap", kind) for kind in ACCEPTED if kind != "LSTM"),  # which vmap does not run
    ],
)
def test_state_that_says_nothing_about_the_data_is_accepted(engine, kind):
    model = ACCEPTED[kind]()
    run = make_run(model, engine=engine)
    keys = model.__dict__.keys()
    train(run)
    assert model.__dict__.keys() == keys


def test_a_count_of_the_calls_is_refused_where_it_counts_examples():
    model = Counting()
    with pytest.raises(UnsupportedError, match=r"The forward changes 'calls'.*Remove the update"):
        make_run(model, engine="loop")
    assert model.calls == 0


def test_what_is_added_to_a_long_list_is_seen():
    model = Stateful(lambda m, mean: m.history.append(mean))
    model.history = [torch.zeros(1)] * 2000
    run = make_run(model, engine="loop")
    model.armed = True
    with pytest.raises(UnsupportedError, match=r"attribute 'history\[20\d\d\]'"):
        train(run)


def test_state_may_be_changed_between_two_releases():
    model = Stateful(None)
    run = make_run(model)
    for step in run:
        model.level, model.state = 0.1 * step.number, torch.full((5,), step.number)
        model.running.add_(1)
        model.frozen.data = torch.ones(5)
        model.history.append(torch.ones(3))
    assert run.steps_done == 6


# --- collate_fn -----------------------------------------------------------------------------------------


class Sentences(Dataset):
    """Examples of 1 to 6 words of 5 numbers, with a label."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        words = tensors(6 * N)[0].view(N, 6, 5)[index, : 1 + index % 6]
        return words, tensors()[1][index]


def stacked(examples):
    x, y = zip(*examples, strict=True)
    return torch.stack(x), torch.stack(y)


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


def test_a_collate_fn_that_leaves_out_a_part_of_larger_batches_is_refused():
    def collate(examples):
        x, y = stacked(examples)
        return {"x": x, "y": y} | ({"more": x} if len(x) > 3 else {})

    with pytest.raises(UnsupportedError, match=r"batch\['more'\]"):
        make_run(nn.Linear(5, 2), lambda model, b: loss(model, (b["x"], b["y"])), collate_fn=collate)


@pytest.mark.parametrize("value", [0.0, -100.0, float("nan")])
@pytest.mark.parametrize("left", [False, True])
def test_a_collate_fn_that_stacks_and_pads_is_accepted(value, left):
    def collate(examples):
        return padded(examples, value, left)

    run = make_run(
        nn.Linear(5, 2), lambda m, b: words_loss(m, without_nan(b)), Sentences(), collate_fn=collate
    )
    train(run)


def without_nan(batch):
    return batch | {"words": batch["words"].nan_to_num()}


@pytest.mark.parametrize("collate", [stacked, noisy, default_collate])
def test_a_collate_fn_that_stacks_or_is_random_for_one_example_is_accepted(collate):
    train(make_run(nn.Linear(5, 2), collate_fn=collate))


def test_a_collate_fn_is_compared_on_other_examples_too():
    def collate(examples):
        x, y = stacked(examples)
        return (x.flip(0) if len(x) == 20 else x), y

    run = make_run(nn.Linear(5, 2), collate_fn=collate)
    check_collate(run.loader, range(19))
    with pytest.raises(UnsupportedError, match="collate_fn"):
        check_collate(run.loader, range(20))
