"""Errors within the private step tell their type and a line, and nothing of the record that caused them."""

import gc
import traceback
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from adamas import UnsupportedError
from adamas.engines.loop import LoopEngine
from adamas.errors import SlowEngineWarning
from adamas.integrations.opacus import PrivacyEngine
from tests.support.opacus_loops import blobs, mlp, private, train

SECRET = 7393
BAD = 37


def records():
    """Returns data in which one record has a label that no class has; its feature is as telling."""
    x, y = blobs()
    x[BAD, 0], y[BAD] = SECRET, SECRET
    return TensorDataset(x, y)


class Backward(torch.autograd.Function):
    """Fails in its backward for one record."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        if (x == SECRET).any():
            raise ArithmeticError(f"found {x.max().item()}")
        return gradient


class Failing(nn.Module):
    """Fails in a way of its own for one record."""

    def __init__(self, how):
        super().__init__()
        self.inner, self.how = mlp(), how

    def forward(self, x):
        for row in x:
            if row[0] == SECRET:
                self.how(row)
        return self.inner(x)


class Files(Dataset):
    """Records in files, of which one cannot be read."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        if index == BAD:
            raise FileNotFoundError(f"patient-{SECRET}.png")
        x, y = blobs()
        return x[index], y[index]


def chain(error):
    """Yields an error and everything that its __cause__ and __context__ lead to."""
    while error is not None:
        yield error
        assert error.__cause__ is None or error.__context__ is None
        error = error.__cause__ or error.__context__


def raised(loop, **options):
    """Trains until the error, and returns it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowEngineWarning)
        with pytest.raises(UnsupportedError) as found:
            train(*loop, epochs=20, **options)
    return found.value


def assert_tells_only(error, kind, line=r"test_failures.py:\d+|opacus_loops.py:\d+"):
    assert list(chain(error)) == [error]
    assert not getattr(error, "__notes__", [])
    text = "".join(traceback.format_exception(error))
    assert str(SECRET) not in text
    assert text.count("Traceback") == 1
    assert type(error) is UnsupportedError
    pytest.raises(UnsupportedError, match=rf"raised {kind} at ({line})\. .* public data").__enter__().__class__
    assert kind in str(error)


def broken(row):
    raise KeyError(f"no ward {row[0].item()}")


def quoting(row):
    raise UnsupportedError(f"Expected a ward, got {row[0].item()}.")


def chained(row):
    try:
        broken(row)
    except KeyError as error:
        raise LookupError("elsewhere") from error
