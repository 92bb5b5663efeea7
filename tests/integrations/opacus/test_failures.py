"""Errors within the private step tell their type and a line, and nothing of the record that caused them."""

import re
import traceback
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from adamas import UnsupportedError
from adamas.errors import SlowEngineWarning
from tests.support.opacus_loops import blobs, mlp, private

SECRET = 7393
BAD = 37


def records():
    """Returns data of which one record has a label that no class has, and tells it in its features."""
    x, y = blobs()
    x[BAD, 0], y[BAD] = SECRET, SECRET
    return TensorDataset(x, y)


class Files(Dataset):
    """Records in files, of which one cannot be read."""

    def __init__(self, bad):
        self.bad = bad

    def __len__(self):
        return 60

    def __getitem__(self, index):
        if index == self.bad:
            raise FileNotFoundError(f"patient-{SECRET}.png")
        x, y = blobs()
        return x[index], y[index]


class FailingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        if (x == SECRET).any():
            raise ArithmeticError(f"found {SECRET}")
        return gradient


def in_backward(x):
    return FailingBackward.apply(x.requires_grad_())


def in_forward(x):
    for row in x:
        if row[0] == SECRET:
            raise KeyError(f"no ward {SECRET}")
    return x


def with_cause(x):
    try:
        return in_forward(x)
    except KeyError as error:
        raise LookupError(f"ward {SECRET}") from error


def as_if_ours(x):
    if (x == SECRET).any():
        raise UnsupportedError(f"Expected a ward, got {SECRET}.")
    return x


class Failing(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.inner, self.how = mlp(), how

    def forward(self, x):
        return self.inner(self.how(x))


def by_values(m, x, y):
    """Computes the loss by a function that only the engines that run each example by itself accept."""
    output = m(x)
    return F.cross_entropy(torch.linalg.eigvalsh(output[:, :, None] * output[:, None, :]), y)


def failed(engine, module, optimizer, loader, loss=lambda m, x, y: F.cross_entropy(m(x), y)):
    """Trains until the error, and returns it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowEngineWarning)
        for x, y in (batch for _ in range(40) for batch in loader):
            try:
                loss(module, x, y).backward()
            except Exception as error:
                return error
            optimizer.step()
    raise AssertionError("No step failed.")


def assert_tells_only(error, kind, doing="The private step"):
    assert type(error) is UnsupportedError
    assert re.match(rf"{doing}.* raised {kind} at test_failures\.py:\d+\. .* public data", str(error))
    assert error.__cause__ is None
    assert error.__context__ is None
    assert not getattr(error, "__notes__", [])
    shown = "".join(traceback.format_exception(error))
    assert str(SECRET) not in shown
    assert shown.count("Traceback") == 1
    for frame, _ in traceback.walk_tb(error.__traceback__):
        assert not any(isinstance(value, BaseException) for value in frame.f_locals.values())


def test_a_label_out_of_range_among_many_tells_neither_itself_nor_its_cause():
    engine, *loop = private(data=records())
    error = failed(engine, *loop)
    assert_tells_only(error, "IndexError")
    line = int(re.search(r"test_failures\.py:(\d+)", str(error))[1])
    assert line == failed.__defaults__[0].__code__.co_firstlineno
    taking = [s for s in range(99) if BAD in engine.run.loader.sampler.indices(s).indices]
    assert engine.run.steps_done == taking[0] > 0  # the steps before it were made, and charged
    assert [count for _, _, count in engine.accountant.history] == [taking[0]]


FAILURES = {
    "forward": (in_forward, "KeyError"),
    "cause": (with_cause, "LookupError"),
    "backward": (in_backward, "ArithmeticError"),
    "an error of adamas, raised by the user": (as_if_ours, "UnsupportedError"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_errors_of_the_users_module_tell_their_type_only(name):
    how, kind = FAILURES[name]
    engine, *loop = private(Failing(how), TensorDataset(records().tensors[0], blobs()[1]))
    assert_tells_only(failed(engine, *loop), kind)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_errors_of_the_data_set_tell_their_type_only(workers):
    engine, *loop = private(data=Files(BAD), loader_options={"num_workers": workers})
    assert_tells_only(failed(engine, *loop), "FileNotFoundError")


def test_an_error_of_the_example_that_make_private_loads_tells_its_type_only():
    with pytest.raises(UnsupportedError) as found:
        private(data=Files(0))
    assert str(SECRET) not in "".join(traceback.format_exception(found.value))
    assert found.value.__context__ is None
    assert "Loading the first example raised FileNotFoundError" in str(found.value)


def test_a_refusal_of_an_engine_does_not_quote_the_error_of_torch():
    engine, *loop = private(data=records())
    error = failed(engine, *loop, loss=by_values)
    assert engine.run.engine == "vmap"
    assert_tells_only(error, "RuntimeError")


def test_a_label_out_of_range_among_the_probed_examples_is_kept_inside_too():
    x, y = blobs()
    y[0] = SECRET
    engine, *loop = private(data=TensorDataset(x, y))
    assert_tells_only(failed(engine, *loop), "IndexError")
    assert engine.accountant.history == []


def test_refusals_of_adamas_keep_their_text_without_what_they_were_raised_from():
    _, module, _, loader = private()
    x, y = next(iter(loader))
    with pytest.raises(UnsupportedError, match="mixes the examples") as found:
        F.cross_entropy(module(x) - module(x).mean(0), y).backward()
    assert found.value.__cause__ is found.value.__context__ is None


def test_training_goes_on_after_an_error_for_whoever_catches_it():
    engine, module, optimizer, loader = private(data=records())
    failed(engine, module, optimizer, loader)
    before = engine.run.steps_done
    with pytest.raises(RuntimeError, match="needs a fresh release"):
        optimizer.step()
    x, y = next(iter(loader))
    F.cross_entropy(module(x), y.clamp(max=2)).backward()
    optimizer.step()
    assert engine.run.steps_done == before + 1
