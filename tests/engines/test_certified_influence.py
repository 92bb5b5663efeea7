"""No record moves the clipped sum by more than 1, whatever cancels in the computation of its norm."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import adamas
from adamas import Geometry, rules
from adamas.check.replay import Silent, joined, release_of, whitened_sums
from adamas.engines import Stacked
from adamas.engines.bookkeeping.certificate import Squares
from adamas.engines.bookkeeping.engine import Bookkeeping
from adamas.noise import GaussianNoise
from adamas.privatize import privatize
from tests.support.certificates import LOW, no_certificate
from tests.support.derived_weights import over_root


class Difference(nn.Module):
    """A linear layer over places; the output is the differences of neighbours."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return (y[:, ::2] - y[:, 1::2]).tanh().sum((1, 2))


class Contrast(nn.Module):
    """A convolution whose output is centered over the image."""

    def __init__(self, channels: int, window: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(channels, 64, window, padding=window // 2, bias=False)
        self.norm = nn.InstanceNorm2d(64)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x)).mul(torch.linspace(0, 1, 64).view(1, -1, 1, 1)).tanh().sum((1, 2, 3))


class Standardised(nn.Module):
    """A linear layer whose weight has rows of mean 0, so that a shift of the input cancels."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(24, 20))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, over_root(self.weight)).tanh().sum((1, 2))


class Words(nn.Module):
    """An embedding of one repeated word; the output is the differences of neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.table(torch.zeros(x.shape[:2], dtype=torch.long)) * x.mean(2, keepdim=True)
        return (y[:, ::2] - y[:, 1::2]).sum((1, 2))


class Transposed(nn.Module):
    """Like `Contrast`, with a function that has no closed form."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ConvTranspose2d(4, 8, 3, bias=False)
        self.norm = nn.InstanceNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x)).mul(torch.linspace(0, 1, 8).view(1, -1, 1, 1)).tanh().sum((1, 2, 3))


class Product(nn.Module):
    """Like `Difference`, with a weight of low rank, or with a function that has no closed form."""

    def __init__(self, merged: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(3, 16)), nn.Parameter(torch.randn(16, 3))
        self.merged = merged

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.b @ self.a) if self.merged else torch.einsum("nti,ri,or->nto", x, self.a, self.b)
        return (y[:, ::2] - y[:, 1::2]).tanh().sum((1, 2))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "two places": (lambda: Difference(16), (2, 16)),
    "many places": (lambda: Difference(64), (16, 64)),
    "kept gradients": (lambda: Difference(8), (16, 8)),
    "1x1 convolution": (lambda: Contrast(128, 1), (128, 3, 3)),
    "3x3 convolution": (lambda: Contrast(128, 3), (128, 3, 3)),
    "convolution, kept gradients": (lambda: Contrast(4, 3), (4, 12, 12)),
    "standardised weight": (Standardised, (6, 20)),
    "embedding": (Words, (8, 4)),
    "no closed form": (Transposed, (4, 6, 6)),
    "low rank": (lambda: Product(True), (4, 16)),
    "einsum": (lambda: Product(False), (4, 16)),
}

LEVELS = (1.0, 1e3, 1e4, 1e5, 1e6, 1e7)


def losses(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    result: Tensor = model(batch[0]).float() * batch[1]
    return result


def influences(name: str, level: float, rule: str = "adam") -> list[float]:
    """Returns how far the whitened sum moves without the record at `level`, and without another one."""
    make, shape = MODELS[name]
    torch.manual_seed(0)
    x = torch.randn(6, *shape)
    x[-1] += level
    model = make()
    dataset = TensorDataset(x, torch.full((6,), 3.0))
    settings = {"batch_size": 6, "steps": 4, "noise_multiplier": 1.0, "delta": 1e-3, "accountant": "rdp"}
    made = rules.RULES[rule](model.parameters(), lr=0.01)
    run = adamas.make_private(model, made, dataset, losses, engine="bookkeeping", **settings)  # type: ignore[arg-type]
    run.noise = Silent(run.noise.seed)
    geometry = run.geometry()

    def total(indices: list[int]) -> Tensor:
        return joined(whitened_sums(run, release_of(run, indices, 0), geometry))

    whole = total(list(range(6)))
    return [float((whole - total([i for i in range(6) if i != left])).norm()) for left in (5, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_record_at_any_level_moves_the_sum_by_at_most_1(name: str) -> None:
    for level in LEVELS:
        assert max(influences(name, level)) <= 1 + LOW, f"at level {level:g}"


@pytest.mark.parametrize("name", ["two places", "many places", "1x1 convolution"])
def test_without_the_certificate_a_record_moves_the_sum_by_more(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Squares, "certified", no_certificate)
    assert max(max(influences(name, level)) for level in LEVELS) > 1.005


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("full", [False, True], ids=["scalar", "per coordinate"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_no_example_adds_more_to_a_sum_than_its_norm(name: str, full: bool, dtype: torch.dtype) -> None:
    make, shape = MODELS[name]
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(8, *shape, generator=generator)
    levels = torch.tensor([0.0, 1.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3])
    x += levels.view(-1, *[1] * len(shape))
    torch.manual_seed(0)
    model = make().to(dtype)
    batch = (x.to(dtype), torch.ones(8))
    params = list(model.parameters())
    scale = {p: 0.5 + torch.rand(p.shape, generator=generator) if full else 0.7 for p in params}
    geometry = Geometry(None, scale)
    built = Bookkeeping(model, losses, batch)
    norms = built.norms(geometry)
    for i in range(8):
        sums = built.weighted_sum(torch.eye(8, dtype=torch.float64)[i])
        square = sum(float((sums[p].double() / scale[p]).square().sum()) for p in params)
        assert float(norms[i]) >= math.sqrt(square) * (1 - LOW)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch_size", [1, 1000, 10**6, 10**9])
def test_weights_that_float32_cannot_hold_are_zero(dtype: torch.dtype, batch_size: int) -> None:
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
