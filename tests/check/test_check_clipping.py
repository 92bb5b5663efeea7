"""`adamas check` catches clipping that depends on the batch, and engines with wrong norms."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import adamas
import adamas.check
import adamas.privatize
from adamas.check import PASS
from adamas.engines import ENGINES, Loop
from tests.support.sabotaged_runs import GRADIENTS, LARGE, SENSITIVITY, N, assert_caught, made, rows_of


def mined(norms):
    """Keeps only the 16 largest gradients."""
    weights = norms.clamp(min=1.0).reciprocal()
    return torch.where(norms >= norms.sort().values[-16:][0], weights, torch.zeros_like(weights))


def by_the_mean(norms):
    return torch.ones_like(norms) / norms.mean().clamp(min=1.0)


def by_the_largest(norms):
    return torch.ones_like(norms) / norms.max().clamp(min=1.0)


def of_small_batches_only(norms):
    """Does not clip batches that are larger than those of a quick test."""
    return torch.ones_like(norms) if len(norms) > 20 else norms.clamp(min=1.0).reciprocal()


@pytest.mark.audits
@pytest.mark.parametrize("weights", [mined, by_the_mean, by_the_largest, of_small_batches_only])
def test_clipping_that_depends_on_the_batch_is_caught(monkeypatch, weights):
    monkeypatch.setattr(adamas.privatize, "clip_weights", weights)
    assert_caught(monkeypatch, made, SENSITIVITY)


class WithoutBiases(Loop):
    """Leaves the biases out of the norm."""

    def norms(self, geometry):
        squares = torch.zeros(len(self._chunks), dtype=torch.float64)
        for index in range(len(self._chunks)):
            for p, g in self._chunk(index).items():
                if p.dim() > 1:
                    squares[index] += geometry.squared_norms(p, g)[0]
        return squares.sqrt()


class Shifted(Loop):
    """Gives each example the norm of the one before it."""

    def norms(self, geometry):
        return super().norms(geometry).roll(1)


class Swapping(Loop):
    """Gives an example of a large batch the gradient of another one."""

    def weighted_sum(self, weights, out=None, *, accumulate=False):
        swapped = weights.flip(0) if len(weights) > 20 else weights
        return super().weighted_sum(swapped, out, accumulate=accumulate)


class Cancelling(Loop):
    """Computes the norm of a difference of two time steps from products in float32, which cancel."""

    def norms(self, geometry):
        x = self._batch[0]  # (n, 2, d); the loss is a difference of the two time steps
        gram = torch.einsum("ntd,nsd->nts", x, x)
        signs = torch.tensor([1.0, -1.0])
        return (torch.einsum("nts,t,s->n", gram, signs, signs).clamp(min=0) * 100).double().sqrt()


@pytest.mark.audits
@pytest.mark.parametrize(
    ("engine", "names"),
    [
        (WithoutBiases, [GRADIENTS, SENSITIVITY]),
        (Shifted, [GRADIENTS, SENSITIVITY]),
        (Swapping, [GRADIENTS]),
    ],
)
def test_an_engine_that_is_wrong_on_a_whole_batch_is_caught(monkeypatch, engine, names):
    monkeypatch.setitem(ENGINES, "loop", engine)
    assert_caught(monkeypatch, lambda: made(engine="loop"), *names)


def differences():
    """Makes a run whose model takes the difference of two time steps."""

    class Difference(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 1, bias=False)

        def forward(self, x):
            return self.linear(x[:, 0]).sub(self.linear(x[:, 1])).squeeze(1) * 10

    x = torch.randn(N, 2, 6, generator=torch.Generator().manual_seed(1))
    return made(lambda model, batch: model(batch[0]), Difference, TensorDataset(x), engine="loop")


def test_norms_that_cancel_are_caught(monkeypatch):
    assert rows_of(monkeypatch, differences, LARGE)[LARGE].verdict == PASS
    monkeypatch.setitem(ENGINES, "loop", Cancelling)
    assert rows_of(monkeypatch, differences, GRADIENTS)[GRADIENTS].verdict == PASS
    assert_caught(monkeypatch, differences, LARGE)
