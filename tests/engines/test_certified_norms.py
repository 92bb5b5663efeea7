"""No closed form of a norm is below the true norm, whatever cancels in it."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adamas import Geometry
from adamas._numerics import sums_kernel as _sums_kernel
from adamas._numerics.sums import gram_sums
from adamas.clip import clip_weights
from adamas.engines.bookkeeping.certificate import Squares
from adamas.engines.bookkeeping.convolution import Convolution
from adamas.engines.bookkeeping.lookup import Lookup
from adamas.engines.bookkeeping.norms import squared_whitened_norms
from adamas.engines.bookkeeping.outer import Outer
from adamas.engines.bookkeeping.records import Record, add_weighted_sum
from tests.support.certificates import LOW, no_certificate

# How far a norm may be too high, relatively: half of the largest error that is added to a square (1e-5), and
# the allowance for the rounding of the sum, which is largest for few coordinates (3e-5).
HIGH = 5e-5
SMALL = 1e-6  # how far a tiny norm may be too high, absolutely


# --- random examples ----------------------------------------------------------------------------------


def common(generator: torch.Generator, n: int, places: int, width: int) -> Tensor:
    """Draws vectors at places; those of one example share a part of length 1 to 1e8, or are alike."""
    level = 10 ** (8 * torch.rand(n, 1, 1, generator=generator))
    apart = torch.randn(n, places, width, generator=generator)
    kinds = [
        torch.randn(n, 1, width, generator=generator),
        torch.randn(n, 1, width, generator=generator).abs(),
        torch.ones(n, 1, width),
    ]
    which = torch.randint(8, (n,), generator=generator)
    x = torch.stack(kinds)[which % 3, torch.arange(n)] * level + apart
    x[which == 3] = apart[which == 3]  # no shared part
    x[which == 4] = x[which == 4, :1]  # all the same
    huge = 1 + level * (torch.rand(n, places, 1, generator=generator) < 2 / places)
    x[which == 5] = (apart * huge)[which == 5]
    x[which == 6] = x[which == 6, :2].repeat_interleave(-(-places // 2), 1)[:, :places]  # two groups
    small = which == 7
    x[small] = x[small, :1] * (1 + 10 ** (-8 * torch.rand(n, 1, 1, generator=generator)) * apart)[small]
    return x


def cancelling(generator: torch.Generator, n: int, places: int, width: int) -> Tensor:
    """Draws output gradients; those of some examples sum to zero, or nearly so."""
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


# --- closed forms -------------------------------------------------------------------------------------


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
    """Yields records, their weight, a geometry, the true whitened gradients, and the rounding of float64."""
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
    """Bounds the rounding of float64 for each example, from the lengths of its terms."""
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
    """Returns the whitened sum, and a bound on the rounding when a center is subtracted."""
    out = torch.empty(p.shape)
    add_weighted_sum(records, weights, out, fresh=True)
    c, s = geometry.center_of(p), geometry.scale[p]
    if c is None:
        return out.double() / s, 0.0
    assert isinstance(c, Tensor)
    total = float(weights.sum())
    # `clipped_sum` shrinks its ball by as much.
    return (out.double() - total * c.double()) / s, 1e-7 * total * float((c.double() / s).norm())


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_no_clipped_example_adds_more_than_1_to_a_sum(name: str) -> None:
    for records, p, geometry, whitened, _ in cases(name):
        weights = clip_weights(squared_whitened_norms(records, p, geometry).sqrt())
        n = len(weights)
        for i in range(0, n, max(1, n // 20)):
            alone, slack = summed(records, p, geometry, weights * (torch.arange(n) == i))
            assert float(alone.norm()) <= 1 + LOW + slack, f"example {i}"
            assert float((alone - weights[i] * whitened[i]).norm()) <= 1e-3 + slack


@pytest.mark.parametrize("name", ["two places", "seven places", "64 places, in blocks", "pixels", "tied"])
def test_without_the_certificate_some_norms_are_too_low(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Squares, "certified", no_certificate)
    records, p, geometry, whitened, slack = next(cases(name))
    norms = squared_whitened_norms(records, p, geometry).sqrt()
    true = whitened.flatten(1).norm(dim=1)
    assert not bool((norms >= true * (1 - LOW) - slack).all())


# --- norms that are computed again --------------------------------------------------------------------


def test_only_examples_that_were_computed_again_are_marked() -> None:
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
    # In a ball this large the norm is far below 1, and its error is harmless.
    squared_whitened_norms([record], p, Geometry.ball([p], 1e15))
    assert record.retaken is None


def test_a_square_that_overflows_or_underflows_float32_is_computed_again() -> None:
    a, e = torch.full((3, 2, 20), 1e22), torch.ones(3, 2, 20)
    a[1], a[2] = 1e-25, math.nan
    record, p = Outer(a, e), nn.Parameter(torch.zeros(20, 20))
    norms = squared_whitened_norms([record], p, Geometry.ball([p])).sqrt()
    assert float(norms[0]) == pytest.approx(40e22, rel=1e-6)
    assert 0 < float(norms[1]) < SMALL
    assert norms[2].isnan()


def test_sums_of_gram_matrices_are_the_same_with_and_without_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not _sums_kernel.available():
        pytest.skip("needs Numba")
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
