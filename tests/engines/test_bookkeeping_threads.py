"""The fast engine on several threads, and its compiled kernels."""

import builtins
import threading

import pytest
import torch
from torch import nn

from adamas import Geometry
from adamas._numerics import sums_kernel as _sums_kernel
from adamas._numerics import threads as _threads
from adamas._numerics.compiled import numba
from adamas.engines import Bookkeeping
from tests.support.models_by_hand import B
from tests.support.one_by_one import assert_exact


@pytest.mark.parametrize("threads", [1, 2])
def test_norms_and_sums_are_exact_on_any_number_of_threads(threads):
    """The number of threads determines the size of chunks, and the kernel for layer norm."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2)).double()
    images = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh()).double()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_exact(model, (torch.randn(B, 7, 6).double(), torch.rand(B).double()))
        assert_exact(images, (torch.randn(B, 2, 5, 5).double(), torch.rand(B).double()))
    finally:
        torch.set_num_threads(before)


def test_the_thread_pool_can_start_within_a_backward(monkeypatch):
    """Norms are computed in the backward, and may be the first work of the thread pool."""
    torch.set_num_threads(2)
    _threads._workers.cache_clear()
    model = nn.Conv2d(3, 8, 3)
    x = torch.randn(50, 3, 8, 8)
    monkeypatch.setattr(_sums_kernel, "_LEAST_SHARE", 1)  # a second thread pays off for any number of values
    geometry = Geometry({}, {p: torch.rand(p.shape) + 0.5 for p in model.parameters()})

    def squares(model, batch):
        return model(batch).square().flatten(1).sum(1)

    started = threading.active_count()
    norms = Bookkeeping(model, squares, x).norms(geometry)
    assert threading.active_count() > started
    torch.set_num_threads(1)
    torch.testing.assert_close(Bookkeeping(model, squares, x).norms(geometry), norms)


@pytest.mark.skipif(numba is None, reason="needs Numba")
def test_kernels_are_compiled_before_a_forward_replaces_len(monkeypatch):
    """Numba does not recognise the replaced `len`, so kernels that call it would not compile."""
    plain, found = builtins.len, []
    compile_ = _sums_kernel._squares.compile

    def noted(signature):
        found.append(builtins.len is plain)
        return compile_(signature)

    monkeypatch.setattr(_sums_kernel._squares, "compile", noted)
    _sums_kernel.available.cache_clear()
    model = nn.Conv2d(3, 8, 3)
    geometry = Geometry({}, {p: torch.rand(p.shape) + 0.5 for p in model.parameters()})
    Bookkeeping(model, lambda model, x: model(x).square().flatten(1).sum(1), torch.randn(5, 3, 8, 8)).norms(
        geometry
    )
    assert found
    assert all(found)
    assert _sums_kernel.available()
