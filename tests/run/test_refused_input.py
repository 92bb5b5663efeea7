"""Options, data, models and losses that `make_private` refuses."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import adamas
from tests.support.custom_losses import make_run_with
from tests.support.small_runs import N, finish, loss, make_data, make_model, make_run


class Stream(IterableDataset):
    def __iter__(self):
        yield from []


class NoLength:
    def __getitem__(self, index):
        return index


BAD = {
    "epsilon=0": ({"noise_multiplier": None, "epsilon": 0.0}, ValueError, "epsilon"),
    "epsilon<0": ({"noise_multiplier": None, "epsilon": -1.0}, ValueError, "epsilon"),
    "epsilon=nan": ({"noise_multiplier": None, "epsilon": math.nan}, ValueError, "epsilon"),
    "epsilon and sigma": ({"epsilon": 1.0}, ValueError, "exactly one of epsilon and noise_multiplier"),
    "neither": ({"noise_multiplier": None}, ValueError, "exactly one of epsilon and noise_multiplier"),
    "sigma<0": ({"noise_multiplier": -1.0}, ValueError, "noise_multiplier"),
    "delta=0": ({"delta": 0.0}, ValueError, "delta"),
    "delta=1": ({"delta": 1.0}, ValueError, "delta"),
    "delta>=1/N": ({"delta": 1 / N}, ValueError, "allow_large_delta"),
    "batch>N": ({"batch_size": N + 1}, ValueError, "batch_size"),
    "batch=0": ({"batch_size": 0}, ValueError, "batch_size"),
    "batch=1.5": ({"batch_size": 1.5}, TypeError, "batch_size"),
    "steps and epochs": ({"epochs": 1}, ValueError, "exactly one of epochs and steps"),
    "no steps": ({"steps": None}, ValueError, "exactly one of epochs and steps"),
    "steps=0": ({"steps": 0}, ValueError, "steps"),
    "clip=0": ({"clip_norm": 0.0}, ValueError, "clip_norm"),
    "clip=inf": ({"clip_norm": math.inf}, ValueError, "clip_norm"),
    "engine": ({"engine": "magic"}, ValueError, "engine"),
    "sampling": ({"sampling": "weighted"}, ValueError, "sampling"),
    "truncated without size": ({"sampling": "truncated-poisson"}, ValueError, "max_batch_size"),
    "accountant": ({"accountant": "guess"}, ValueError, "accountant"),
    "accountant without the sampling": (
        {"accountant": "rdp", "sampling": "truncated-poisson", "max_batch_size": 20},
        adamas.UnsupportedError,
        "accountant='rdp'",
    ),
    "workers": ({"num_workers": -1}, ValueError, "num_workers=-1 >= 0"),
    "average of another model": ({"ema": AveragedModel(nn.Linear(3, 2))}, ValueError, "ema"),
    "micro": ({"micro_batch_size": 0}, ValueError, "micro_batch_size"),
    "seed": ({"seed": -1}, ValueError, "seed"),
    "seed=0.5": ({"seed": 0.5}, TypeError, "seed"),
    "ema": ({"ema": 1.5}, ValueError, "ema"),
    "stream": ({"data": Stream()}, TypeError, "map-style"),
    "loader": ({"data": DataLoader(make_data())}, TypeError, "loader.dataset"),
    "no length": ({"data": NoLength()}, TypeError, "__len__"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_at_construction_and_changes_nothing(case):
    changes, error, message = BAD[case]
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=message):
        make_run(model, **changes)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None for p in model.parameters())
    assert model.training


@pytest.mark.parametrize(
    ("wrong", "shape"),
    [
        (lambda model, batch: loss(model, batch).mean(), "a scalar"),
        (lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), "a scalar"),
        (lambda model, batch: loss(model, batch).unsqueeze(1), "2 axes"),
        (lambda model, batch: loss(model, batch).unsqueeze(1).expand(-1, 3), "2 axes"),
    ],
)
def test_a_loss_that_is_not_one_number_per_example_is_refused_with_the_remedy(wrong, shape):
    with pytest.raises(adamas.UnsupportedError, match=rf"{shape}.*reduction"):
        make_run_with(wrong)


def assert_refused(model, message):
    with pytest.raises(adamas.UnsupportedError, match=message):
        make_run(model)


def test_batch_norm_is_refused_in_training_and_accepted_in_evaluation():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    assert_refused(model, "1 is a BatchNorm1d.*GroupNorm")
    model[1].eval()
    run = make_run(model)
    finish(run)
    run = make_run(model)
    model.train()
    with pytest.raises(adamas.UnsupportedError, match="BatchNorm1d"):
        finish(run)


class CenteredOverTheBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x):
        return self.layer(x - x.mean(0))


class ScaledByTheBatch(nn.Module):
    """Scales its output by a statistic of the batch through which no gradient flows."""

    def __init__(self, statistic):
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.statistic = statistic

    def forward(self, x):
        return self.layer(x) * self.statistic(x.detach()).mean()


def test_statistics_over_the_batch_are_refused():
    assert_refused(CenteredOverTheBatch(), "mixes the examples")
    assert_refused(ScaledByTheBatch(lambda x: x.mean(0).abs()), "mixes the examples")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the standard deviation of one example is NaN
        assert_refused(ScaledByTheBatch(lambda x: x.std(0)), "mixes the examples")


def test_a_forward_that_changes_state_is_refused_and_the_state_restored():
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4)), nn.Linear(4, 2))
    before = copy.deepcopy(model.state_dict())
    assert_refused(model, "buffer '0.parametrizations.weight.0._u'")
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_tensors_that_are_not_batch_first_are_refused():
    def time_first(examples):
        return torch.stack([x for x, _ in examples], dim=1), torch.tensor([int(y) for _, y in examples])

    with pytest.raises(ValueError, match="batch-first"):
        make_run(collate_fn=time_first)


def test_a_model_that_vmap_cannot_run_falls_back_to_the_loop():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, x):
            return self.layer(x) if x.sum().item() > 0 else self.layer(-x)

    x, y = make_data().tensors
    data = TensorDataset(x.abs(), y)
    with pytest.raises(adamas.UnsupportedError, match="engine='loop'"):
        make_run(Branching(), data=data, engine="vmap")
    run = make_run(Branching(), data=data)
    assert run.engine == "loop"
    assert finish(run).isfinite().all()


class OtherWhenRepeated(nn.Linear):
    """A layer under a checkpoint whose forward saves fewer tensors when it is run again."""

    def forward(self, x):
        calls = []

        def layer(x):
            calls.append(None)
            y = super(OtherWhenRepeated, self).forward(x)
            return y.relu() if len(calls) == 1 else y

        return checkpoint(layer, x, use_reentrant=False)


@pytest.mark.parametrize(
    ("engine", "remedy"),
    [
        ("bookkeeping", r"\(gradient_checkpointing=False\), or use engine='loop'\.$"),
        ("loop", r"\(gradient_checkpointing=False\)\.$"),
    ],
)
def test_an_engine_that_cannot_repeat_a_checkpoint_names_what_can(engine, remedy):
    model = nn.Sequential(OtherWhenRepeated(5, 4), nn.Linear(4, 3))
    with pytest.raises(adamas.UnsupportedError, match=remedy):
        make_run(model, engine=engine)
