"""Norms are never too low, whatever cancels in them, and no example adds more to a sum than its norm."""

import math
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import adamas
from adamas import Geometry, rules
from adamas._numerics import sums_kernel as _sums_kernel
from adamas._numerics.sums import gram_sums
from adamas.check.replay import Silent, joined, release_of, whitened_sums
from adamas.clip import clip_weights
from adamas.engines.bookkeeping.certificate import Squares
from adamas.engines.bookkeeping.convolution import Convolution
from adamas.engines.bookkeeping.engine import Bookkeeping
from adamas.engines.bookkeeping.lookup import Lookup
from adamas.engines.bookkeeping.norms import squared_whitened_norms
from adamas.engines.bookkeeping.outer import Outer
from adamas.engines.bookkeeping.records import Record, add_weighted_sum
from tests.support.derived_weights import over_root

LOW = 1e-6  # how much a norm may be too low, and how far beyond 1 an example may move a sum
# How much it may be too high: half of the largest error that is added to a square (1e-5), and the part for
# the rounding of the sum, which is largest for few coordinates (3e-5).
HIGH = 5e-5
SMALL = 1e-6  # or this, where the whole norm is not larger


def no_certificate(self: Squares, size: int, harmless: float = 0.0) -> tuple[Tensor, None]:
    return self.values.clamp(min=0), None


# --- a. one record at a high level, through the door --------------------------------------------------


class Difference(nn.Module):
    """A linear layer over places that is read as differences of neighbours."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return (y[:, ::2] - y[:, 1::2]).tanh().sum((1, 2))


class Contrast(nn.Module):
    """A convolution whose output loses its mean over the image."""

    def __init__(self, channels: int, window: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(channels, 64, window, padding=window // 2, bias=False)
        self.norm = nn.InstanceNorm2d(64)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x)).mul(torch.linspace(0, 1, 64).view(1, -1, 1, 1)).tanh().sum((1, 2, 3))


class Standardised(nn.Module):
    """A linear layer whose weight's rows have mean 0: what all inputs share is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(24, 20))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, over_root(self.weight)).tanh().sum((1, 2))


class Words(nn.Module):
    """An embedding of one word over and over, read as differences of neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.table(torch.zeros(x.shape[:2], dtype=torch.long)) * x.mean(2, keepdim=True)
        return (y[:, ::2] - y[:, 1::2]).sum((1, 2))


class Transposed(nn.Module):
    """As `Contrast`, by a function without a formula."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ConvTranspose2d(4, 8, 3, bias=False)
        self.norm = nn.InstanceNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x)).mul(torch.linspace(0, 1, 8).view(1, -1, 1, 1)).tanh().sum((1, 2, 3))


class Product(nn.Module):
    """As `Difference`, by a weight of low rank, or by a function without a formula."""

    def __init__(self, merged: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(3, 16)), nn.Parameter(torch.randn(16, 3))
        self.merged = merged

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.b @ self.a) if self.merged else torch.einsum("nti,ri,or->nto", x, self.a, self.b)
        return (y[:, ::2] - y[:, 1::2]).tanh().sum((1, 2))


DOORS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "two places": (lambda: Difference(16), (2, 16)),
    "many places": (lambda: Difference(64), (16, 64)),
    "kept gradients": (lambda: Difference(8), (16, 8)),
    "1x1 convolution": (lambda: Contrast(128, 1), (128, 3, 3)),
    "3x3 convolution": (lambda: Contrast(128, 3), (128, 3, 3)),
    "convolution, kept gradients": (lambda: Contrast(4, 3), (4, 12, 12)),
    "standardised weight": (Standardised, (6, 20)),
    "embedding": (Words, (8, 4)),
    "no formula": (Transposed, (4, 6, 6)),
    "low rank": (lambda: Product(True), (4, 16)),
    "einsum": (lambda: Product(False), (4, 16)),
}
LEVELS = (1.0, 1e3, 1e4, 1e5, 1e6, 1e7)


def losses(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    result: Tensor = model(batch[0]).float() * batch[1]
    return result


def influences(name: str, level: float, rule: str = "adam") -> list[float]:
    """Returns how far the whitened sum moves without the record at that level, and without another one."""
    make, shape = DOORS[name]
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
@pytest.mark.parametrize("name", DOORS)
def test_a_record_at_any_level_moves_the_sum_by_at_most_1(name: str) -> None:
    for level in LEVELS:
        assert max(influences(name, level)) <= 1 + LOW, level


@pytest.mark.parametrize("name", ["two places", "many places", "1x1 convolution"])
def test_without_the_certificate_a_record_moves_it_by_more(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Squares, "certified", no_certificate)
    assert max(max(influences(name, level)) for level in LEVELS) > 1.005


@pytest.mark.parametrize("name", DOORS)
@pytest.mark.parametrize("full", [False, True], ids=["scalar", "per coordinate"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_of_all_that_an_example_adds_its_norm_knows(name: str, full: bool, dtype: torch.dtype) -> None:
    make, shape = DOORS[name]
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


# --- b. every closed form, on random examples ---------------------------------------------------------


def common(generator: torch.Generator, n: int, places: int, width: int) -> Tensor:
    """Draws vectors at places that share a part of length 1 to 1e8, in one of several ways per example."""
    level = 10 ** (8 * torch.rand(n, 1, 1, generator=generator))
    apart = torch.randn(n, places, width, generator=generator)
    kinds = [
        torch.randn(n, 1, width, generator=generator),
        torch.randn(n, 1, width, generator=generator).abs(),
        torch.ones(n, 1, width),
    ]
    which = torch.randint(8, (n,), generator=generator)
    x = torch.stack(kinds)[which % 3, torch.arange(n)] * level + apart
    x[which == 3] = apart[which == 3]  # nothing in common
    x[which == 4] = x[which == 4, :1]  # all the same
    huge = 1 + level * (torch.rand(n, places, 1, generator=generator) < 2 / places)
    x[which == 5] = (apart * huge)[which == 5]
    x[which == 6] = x[which == 6, :2].repeat_interleave(-(-places // 2), 1)[:, :places]  # two groups
    small = which == 7
    x[small] = x[small, :1] * (1 + 10 ** (-8 * torch.rand(n, 1, 1, generator=generator)) * apart)[small]
    return x


def cancelling(generator: torch.Generator, n: int, places: int, width: int) -> Tensor:
    """Draws output gradients, some of which sum to zero or to little."""
    e = torch.randn(n, places, width, generator=generator)
    which = torch.randint(6, (n,), generator=generator)
    t = torch.arange(places)
    alternating, halves = 1.0 - 2 * (t % 2), 1.0 - 2 * (t >= places // 2)
    e[which == 1] -= e[which == 1].mean(1, keepdim=True)
    e[which == 2] = (e[:, :1] * alternating.view(1, -1, 1))[which == 2]
    e[which == 3] = (e[:, :1] * halves.view(1, -1, 1))[which == 3]
    e[which == 4] = (e[:, :1] * alternating.view(1, -1, 1) * (1 + 0.01 * e))[which == 4]
    e[which == 5] = e[which == 5, :1]
    return e


def outer(generator: torch.Generator, n: int, places: int, p: int, d: int) -> tuple[Outer, Tensor]:
    a, e = common(generator, n, places, p), cancelling(generator, n, places, d)
    return Outer(a, e), torch.einsum("ntd,ntp->ndp", e.double(), a.double())


def convolution(
    generator: torch.Generator, n: int, size: int, channels: int, k: int
) -> tuple[Record, Tensor]:
    x = common(generator, n, size * size, channels).mT.reshape(n, channels, size, size)
    e = cancelling(generator, n, size * size, 64).mT.reshape(n, 64, size, size)
    record = Convolution(x, e, (64, channels, k, k), [1, 1], [k // 2, k // 2], [1, 1], 1)
    windows = F.unfold(x.double(), k, padding=k // 2)
    gradient = torch.einsum("not,nit->noi", e.double().flatten(2), windows)
    return record, gradient.view(n, 64, channels, k, k)


def lookup(generator: torch.Generator, n: int) -> tuple[Lookup, Tensor]:
    indices = torch.randint(3, (n, 12), generator=generator)
    e = common(generator, n, 12, 8) * cancelling(generator, n, 12, 1)
    gradient = torch.zeros(n, 5, 8, dtype=torch.float64)
    gradient.scatter_add_(1, indices.unsqueeze(2).expand(n, 12, 8), e.double())
    return Lookup(indices, e, 5, None), gradient


def tied(generator: torch.Generator, n: int) -> tuple[list[Record], Tensor]:
    table, first = lookup(generator, n)
    a, e = common(generator, n, 2, 8), cancelling(generator, n, 2, 5)
    return [Outer(a, e), table], first + torch.einsum("ntd,ntp->ndp", e.double(), a.double())


FORMS: dict[str, tuple[Callable[[torch.Generator, int], tuple[Record | list[Record], Tensor]], int]] = {
    "one place": (lambda g, n: outer(g, n, 1, 24, 20), 300),
    "two places": (lambda g, n: outer(g, n, 2, 16, 12), 600),
    "seven places": (lambda g, n: outer(g, n, 7, 40, 30), 400),
    "16 places, few coordinates": (lambda g, n: outer(g, n, 16, 5, 4), 300),
    "64 places, in blocks": (lambda g, n: outer(g, n, 64, 150, 160), 60),
    "128 places, in blocks": (lambda g, n: outer(g, n, 128, 260, 270), 40),
    "pixels": (lambda g, n: convolution(g, n, 2, 16, 1), 300),
    "pixels in windows": (lambda g, n: convolution(g, n, 3, 64, 3), 60),
    "windows": (lambda g, n: convolution(g, n, 7, 3, 3), 60),
    "embedding": (lookup, 300),
    "tied": (tied, 180),
}
assert 4 * sum(n for _, n in FORMS.values()) > 10_000


def cases(name: str) -> Iterator[tuple[list[Record], nn.Parameter, Geometry, Tensor, Tensor]]:
    """Yields records, their weight, a geometry, the true whitened gradients, and their float64 rounding."""
    make, n = FORMS[name]
    for seed, (full, centered) in enumerate([(False, False), (False, True), (True, False), (True, True)]):
        generator = torch.Generator().manual_seed(100 + seed)
        records, gradients = make(generator, n)
        records = records if isinstance(records, list) else [records]
        shape = gradients.shape[1:]
        p = nn.Parameter(torch.zeros(shape))
        s = 10 ** (torch.rand(shape, generator=generator) - 0.5) if full else 0.7
        near = gradients[0] + gradients[0].norm() * torch.randn(shape, generator=generator).double() / 30
        c = near.float() if centered else None
        whitened = (gradients if c is None else gradients - c.double()) / s
        yield records, p, Geometry(None if c is None else {p: c}, {p: s}), whitened, rounding(records, s)


def rounding(records: list[Record], s: Tensor | float) -> Tensor:
    """Returns the total length of an example's terms, which scales the rounding of float64."""
    least = float(s.min()) if isinstance(s, Tensor) else s
    total = torch.zeros(records[0].n, dtype=torch.float64)
    for record in records:
        lengths = [t.double().flatten(1).norm(dim=1) for t in record.tensors() if t.is_floating_point()]
        total += math.prod(lengths, start=torch.ones_like(total))  # type: ignore[call-overload]
    return 1e-13 * total / least


@pytest.mark.parametrize("name", FORMS)
def test_no_norm_is_below_the_true_one(name: str) -> None:
    for records, p, geometry, whitened, slack in cases(name):
        norms = squared_whitened_norms(records, p, geometry).sqrt()
        true = whitened.flatten(1).norm(dim=1)
        assert bool((norms >= true * (1 - LOW) - slack).all())
        assert bool((norms <= true * (1 + HIGH) + SMALL + slack).all())


def summed(
    records: list[Record], p: nn.Parameter, geometry: Geometry, weights: Tensor
) -> tuple[Tensor, float]:
    """Returns the whitened sum with these weights, and a bound on rounding when a center is subtracted."""
    out = torch.empty(p.shape)
    add_weighted_sum(records, weights, out, fresh=True)
    c, s = geometry.center_of(p), geometry.scale[p]
    if c is None:
        return out.double() / s, 0.0
    assert isinstance(c, Tensor)
    total = float(weights.sum())
    # The private sum shrinks its ball by as much.
    return (out.double() - total * c.double()) / s, 1e-7 * total * float((c.double() / s).norm())


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_no_sum_gets_more_than_norms_say(name: str) -> None:
    """Checks examples by themselves, and their contribution to the sum of all."""
    for records, p, geometry, whitened, _ in cases(name):
        weights = clip_weights(squared_whitened_norms(records, p, geometry).sqrt())
        n = len(weights)
        for i in range(0, n, max(1, n // 20)):
            alone, slack = summed(records, p, geometry, weights * (torch.arange(n) == i))
            assert float(alone.norm()) <= 1 + LOW + slack, i
            assert float((alone - weights[i] * whitened[i]).norm()) <= 1e-3 + slack


@pytest.mark.parametrize("name", ["two places", "seven places", "64 places, in blocks", "pixels", "tied"])
def test_without_the_certificate_norms_are_below(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Squares, "certified", no_certificate)
    records, p, geometry, whitened, slack = next(cases(name))
    norms = squared_whitened_norms(records, p, geometry).sqrt()
    true = whitened.flatten(1).norm(dim=1)
    assert not bool((norms >= true * (1 - LOW) - slack).all())


def test_who_is_taken_again_is_marked_and_nobody_else() -> None:
    generator = torch.Generator().manual_seed(0)
    a, e = torch.randn(5, 4, 30, generator=generator), torch.randn(5, 4, 30, generator=generator)
    a[1] += 1e5
    e[1] -= e[1].mean(0)
    record, p = Outer(a, e), nn.Parameter(torch.zeros(30, 30))
    squared_whitened_norms([record], p, Geometry.ball([p]))
    assert record.retaken is not None
    assert record.retaken.tolist() == [False, True, False, False, False]
    kept = record.kept(torch.tensor([True, True, False, False, True]))
    assert kept.retaken is not None
    assert kept.retaken.tolist() == [False, True, False]
    squared_whitened_norms([record], p, Geometry.ball([p], 1e15))  # a norm of no consequence
    assert record.retaken is None


def test_a_square_beyond_float32_is_taken_again() -> None:
    a, e = torch.full((3, 2, 20), 1e22), torch.ones(3, 2, 20)
    a[1], a[2] = 1e-25, math.nan
    record, p = Outer(a, e), nn.Parameter(torch.zeros(20, 20))
    norms = squared_whitened_norms([record], p, Geometry.ball([p])).sqrt()
    assert float(norms[0]) == pytest.approx(40e22, rel=1e-6)
    assert 0 < float(norms[1]) < SMALL
    assert norms[2].isnan()


def test_the_sums_of_gram_matrices_are_the_same_compiled_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    if not _sums_kernel.available():
        pytest.skip("Numba is missing")
    generator = torch.Generator().manual_seed(0)
    x, y = common(generator, 40, 10, 6), cancelling(generator, 40, 10, 6)
    grams = [(x @ x.mT + (x @ x.mT).mT) / 2, (y @ y.mT + (y @ y.mT).mT) / 2]  # symmetric to the last bit
    places = x.shape[1]
    corners = [(0, 0, 4, 4), (4, 4, places, places), (0, 4, 4, places)]
    blocks = [(i, j, *(gram[:, i:k, j:m].contiguous() for gram in grams)) for i, j, k, m in corners]
    whole = gram_sums([(0, 0, *grams)], places, 0.99)
    torch.testing.assert_close(gram_sums(blocks, places, 0.99), whole, rtol=1e-9, atol=1e-9)
    monkeypatch.setattr(_sums_kernel, "available", lambda: False)
    torch.testing.assert_close(gram_sums([(0, 0, *grams)], places, 0.99), whole, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gram_sums(blocks, places, 0.99), whole, rtol=1e-9, atol=1e-9)
