"""A forward that changes state is refused on every engine, unless the state reveals nothing."""

import copy
import re
import types
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from adamas import UnsupportedError
from adamas.engines import ENGINES
from tests.support.every_engine import every_engine
from tests.support.sgd_runs import make_run
from tests.support.small_runs import finish, loss

# --- state that depends on the data ---------------------------------------------------------------------


class Box:
    """An object without a `__dict__`."""

    __slots__ = ("mean",)

    def __init__(self):
        self.mean = torch.zeros(5)


class Stateful(nn.Module):
    """A linear layer; once armed, its forward also passes the mean of the inputs to `update`."""

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
    """Copies the parameters, buffers and attributes of a model, by name."""
    named = {**dict(model.named_parameters()), **dict(model.named_buffers()), "box.mean": model.box.mean}
    plain = {name: value for name, value in vars(model).items() if not name.startswith("_")}
    return copy.deepcopy(named | plain)


def assert_same(model, before):
    after = contents(model)
    assert after.keys() == before.keys()
    for name, value in after.items():
        if isinstance(value, torch.Tensor | np.ndarray | float | list | dict):
            torch.testing.assert_close(value, before[name], rtol=0, atol=0)


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
        return  # the model now holds a tensor of vmap, which can no longer be read
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    for name, value in model.named_buffers():
        assert torch.equal(value, before[name]) or name == "long"
    model.armed = False
    finish(run)


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
@pytest.mark.parametrize("what", UPDATES)
def test_a_forward_that_changes_state_is_refused_by_make_private_and_undone(engine, what):
    model = Stateful(UPDATES[what])
    model.armed = True
    before = contents(model)
    with pytest.raises(UnsupportedError):
        make_run(model, engine=engine)
    assert model.calls == 0
    by_memory = what == "parameter 'frozen' by memory" and engine in ("auto", "vmap")
    if not what.startswith("extra") and not by_memory:  # there the model keeps a tensor of vmap
        assert_same(model, before)


def test_a_buffer_that_only_larger_batches_change_is_refused():
    model = Stateful(UPDATES["buffer 'running'"], least=4)
    model.armed = True
    with pytest.raises(UnsupportedError):
        finish(make_run(model, engine="bookkeeping"))
    assert not model.running.any()


class ActNorm(nn.Module):
    """Sets its shift to the mean of the first batch that it sees."""

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
    finish(make_run(model, engine=engine))


def test_the_state_of_a_module_that_the_loss_calls_is_watched():
    teacher = Stateful(UPDATES["buffer 'running'"])

    def distilled(model, batch):
        return (model(batch[0]) - teacher(batch[0]).detach()).square().sum(1)

    run = make_run(nn.Linear(5, 2), distilled, engine="loop")
    teacher.armed = True
    with pytest.raises(UnsupportedError, match=r"buffer 'loss\.teacher\.running'"):
        finish(run)


def test_the_attributes_of_a_loss_are_watched():
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
            finish(run)


def test_an_item_appended_to_a_long_list_is_noticed():
    model = Stateful(lambda m, mean: m.history.append(mean))
    model.history = [torch.zeros(1)] * 2000
    run = make_run(model, engine="loop")
    model.armed = True
    with pytest.raises(UnsupportedError, match=r"attribute 'history\[20\d\d\]'"):
        finish(run)


# --- state that reveals nothing -------------------------------------------------------------------------


class Counting(nn.Module):
    """Counts its calls, sets a flag and recomputes a constant."""

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


class Spoilt(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("unused", torch.full((3,), torch.nan))
        self.value = float("nan")

    def forward(self, x):
        self.value = float("nan")
        return x


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


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        *(("auto", kind) for kind in ACCEPTED),
        *(("loop", kind) for kind in ACCEPTED if kind != "counters"),  # they would count examples
        *(("vmap", kind) for kind in ACCEPTED if kind != "LSTM"),  # vmap does not support it
    ],
)
def test_state_that_reveals_nothing_is_accepted(engine, kind):
    model = ACCEPTED[kind]()
    run = make_run(model, engine=engine)
    keys = model.__dict__.keys()
    finish(run)
    assert model.__dict__.keys() == keys


def test_a_counter_of_calls_is_refused_where_it_counts_examples():
    model = Counting()
    with pytest.raises(UnsupportedError, match=r"The forward changes 'calls'.*Remove the update"):
        make_run(model, engine="loop")
    assert model.calls == 0


def test_state_may_be_changed_between_two_releases():
    model = Stateful(None)
    run = make_run(model)
    for step in run:
        model.level, model.state = 0.1 * step.number, torch.full((5,), step.number)
        model.running.add_(1)
        model.frozen.data = torch.ones(5)
        model.history.append(torch.ones(3))
    assert run.steps_done == 6
