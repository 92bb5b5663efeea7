"""Convolutions are exact with both memory orders of their windows, and hold few windows at a time."""

import math

import pytest
import torch

from adamas import Geometry
from adamas.engines import Bookkeeping
from adamas.engines.bookkeeping import convolution
from tests.support.models_by_hand import CASES, made
from tests.support.one_by_one import assert_exact, loss

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")

# Convolutions that copy their windows; a transposed one takes the general path.
NAMES = [name for name in CASES if name.startswith("conv")]


@pytest.fixture
def orders(monkeypatch):
    """Records which orders are used."""
    seen = []
    init = convolution.Unfold.__init__

    def spied(self, *args):
        init(self, *args)
        seen.append(self.channels_last)

    monkeypatch.setattr(convolution.Unfold, "__init__", spied)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("last", [True, False], ids=["channels last", "channels first"])
@pytest.mark.parametrize("bands", [False, True], ids=["whole", "in bands"])
def test_both_orders_are_exact(name, last, bands, orders, monkeypatch):
    monkeypatch.setattr(convolution, "_LONG", 0 if last else math.inf)
    if bands:  # they have one row, or two or three short ones
        monkeypatch.setattr(convolution, "_LARGE", 0)
        monkeypatch.setattr(convolution, "CHUNK", 700)
    assert_exact(*made(CASES[name]))
    assert orders
    grouped = "groups" in name or "depthwise" in name or name == "conv1d same, even"
    assert set(orders) == {last and not grouped}


@pytest.mark.parametrize(
    ("channels", "size", "last"), [(3, 32, False), (64, 32, False), (64, 8, True), (128, 16, True)]
)
def test_channels_are_last_if_they_are_many_and_pixels_are_few(channels, size, last):
    x = torch.zeros(1, channels, size, size)
    assert convolution.Unfold(x, 1, (3, 3), [1, 1], [1, 1], [1, 1], 1).channels_last == last


@pytest.mark.parametrize("channels", [2, 16])
def test_the_windows_of_a_large_image_are_made_in_bands(channels):
    """All windows together take 9 times the memory of the image; a band takes at most a chunk."""
    side = 4 * math.isqrt(convolution.CHUNK // channels)
    unfold = convolution.Unfold(torch.zeros(1, channels, side, side), 1, (3, 3), [1, 1], [1, 1], [1, 1], 1)
    held = [columns.numel() for _, columns in unfold(torch.ones(1, channels, side, side))]
    assert sum(held) == 9 * channels * side**2
    assert max(held) <= convolution.CHUNK
    assert unfold._columns.numel() <= convolution.CHUNK


def test_windows_are_not_held_until_the_sum():
    """The gradients of these layers are too large to be kept, so their records are."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.Conv2d(32, 32, 3)).double()
    batch = (torch.randn(4, 32, 4, 4).double(), torch.rand(4).double())
    engine = Bookkeeping(model, loss, batch)
    geometry = Geometry(None, {p: torch.ones_like(p) for p in model.parameters()})
    for _ in range(2):  # first in the backward, then from the records
        engine.norms(geometry)
        records = [r for each in engine._direct.values() for r in each]
        held = [r for r in records if isinstance(r, convolution.Convolution)]
        assert len(held) == 2
        assert not any(isinstance(value, convolution.Unfold) for r in held for value in vars(r).values())


def test_frames_folded_into_the_batch_are_exact():
    torch.manual_seed(0)
    model = torch.nn.Conv2d(2, 3, 3, bias=False).double()

    def frames(model, batch):
        return model(batch[0].flatten(0, 1)).unflatten(0, (-1, 5)).square().sum((1, 2, 3, 4))

    for n in (1, 4):
        assert_exact(model, (torch.randn(n, 5, 2, 8, 8, dtype=torch.float64),), frames)
