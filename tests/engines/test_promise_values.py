"""One record moves the sum by at most 1: values that are read, or not followed, are refused."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from adamas import Geometry, UnsupportedError
from adamas.engines import Bookkeeping
from tests.support.promised_runs import Forward, cross_entropy, data, layers
from tests.support.through import Through

# --- values that are read -----------------------------------------------------------------------------


READS: dict[str, Callable[[Tensor], Any]] = {
    "where": lambda x: torch.where(x[:, 0] > 0)[0].shape[0] > 12,
    "nonzero": lambda x: len((x[:, 0] > 0).nonzero()) > 12,
    "unique_consecutive": lambda x: torch.unique_consecutive(x[:, 0].round()).max() > 1,
    "bincount": lambda x: torch.bincount((x[:, 0] > 0).long())[0] > 12,
    "repeat_interleave": lambda x: torch.repeat_interleave((x[:, 0] > 0).long()).numel() > 12,
    "in": lambda x: 2.0 in x,
    "str": lambda x: "nan" in str(x),
    "to_sparse": lambda x: x.relu().to_sparse()._nnz() > 12,
    "storage": lambda x: x.untyped_storage()[0] > 1,
    "dlpack": lambda x: torch.from_dlpack(x.__dlpack__()).sum() > 0,
    "numpy": lambda x: x.numpy().sum() > 0,
    "sum": lambda x: x.sum() > 0,
    "sorted": lambda x: sorted(x[:, 0])[0] > 0,
    "any row": lambda x: any(row.sum() > 9 for row in x),
}


@pytest.mark.parametrize("name", READS)
def test_reading_values_of_the_batch_is_refused(name):
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.second(m.first(x) * (2.0 if READS[name](x) else 1.0))

    model = Through(forward, **layers())
    batch = data(5).tensors
    with pytest.raises((UnsupportedError, TypeError, RuntimeError)) as error:
        Bookkeeping(model, cross_entropy, batch).norms(Geometry.ball(model.parameters()))
    assert error.type is UnsupportedError


# --- values that are not followed ---------------------------------------------------------------------


def kept_from_before(m: Any, x: Tensor) -> Tensor:
    h = m.first(x)
    last, m.__dict__["kept"] = m.__dict__.get("kept"), [h.detach().clone()]
    return m.second(h if last is None or last[0].shape != h.shape else h + last[0])


def centered(x: Tensor) -> Tensor:
    return x - x.mean(0)


with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated")
    scripted = torch.jit.script(centered)


UNSEEN: dict[str, Forward] = {
    "a tensor of an earlier step": kept_from_before,
    "TorchScript": lambda m, x: m.second(m.first(scripted(x))),
    "vmap over the features": lambda m, x: m.second(m.first(torch.vmap(lambda c: c - c.mean(), 1, 1)(x))),
    "the position in the batch": lambda m, x: m.second(m.first(x) + torch.arange(x.shape[0])[:, None]),
    "ranks": lambda m, x: m.second(m.first(x) * x[:, 0].argsort().argsort()[:, None]),
    "out=": lambda m, x: m.second(m.first(torch.sub(x, x.mean(0), out=torch.empty_like(x)))),
    "set_": lambda m, x: m.second(m.first(torch.empty(0).set_(x.flip(0)))),
    "a buffer of the batch's length": lambda m, x: m.second(m.first(x * torch.eye(x.shape[0], 5))),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_values_that_are_not_followed_are_refused(name):
    model = Through(UNSEEN[name], **layers())
    batch = data(5).tensors
    ball = Geometry.ball(model.parameters())
    engines = [Bookkeeping(model, cross_entropy, batch) for _ in range(2)]
    with pytest.raises(UnsupportedError):
        [engine.norms(ball) for engine in engines]
