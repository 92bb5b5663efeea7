"""Convolutions with both orders of their windows in memory, against one example at a time."""

import math

import pytest
import torch
from test_bookkeeping import CASES, assert_exact, made

from adamas.engines import convolution

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")

# Those whose windows are copied; a transposed convolution takes the general path.
NAMES = [name for name in CASES if name.startswith("conv")]


@pytest.fixture
def orders(monkeypatch):
    """Which orders were used."""
    seen = []
    init = convolution.Unfold.__init__

    def spied(self, *args):
        init(self, *args)
        seen.append(self.channels_last)

    monkeypatch.setattr(convolution.Unfold, "__init__", spied)
    return seen


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("last", [True, False], ids=["channels last", "channels first"])
def test_both_orders_are_exact(name, last, orders, monkeypatch):
    monkeypatch.setattr(convolution, "_LONG", 0 if last else math.inf)
    assert_exact(*made(CASES[name]))
    assert orders
    grouped = "groups" in name or "depthwise" in name or name == "conv1d same, even"
    assert set(orders) == {last and not grouped}


@pytest.mark.parametrize(
    ("channels", "size", "last"), [(3, 32, False), (64, 32, False), (64, 8, True), (128, 16, True)]
)
def test_many_channels_and_few_pixels_have_the_channels_last(channels, size, last):
    x = torch.zeros(1, channels, size, size)
    assert convolution.Unfold(x, 1, (3, 3), [1, 1], [1, 1], [1, 1], 1).channels_last == last
