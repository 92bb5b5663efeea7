"""The fast engine in float32, in 16 bits and under autocast, compared with float64."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adamas import Geometry
from adamas.engines import Bookkeeping
from tests.support.fast_engine import torch_warnings
from tests.support.models_by_hand import CASES, B, Pool, Through, attention, made, param
from tests.support.one_by_one import (
    Batch,
    ball,
    geometries,
    loss,
    one_by_one,
    some_weights,
    summed,
    whitened_norms,
)

pytestmark = torch_warnings


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("which", [0, 1, 2], ids=["ball", "per coordinate", "center"])
def test_float32_norms_are_exact_to_float32(kind, which):
    def model() -> nn.Module:
        torch.manual_seed(0)
        if kind == "mlp":
            return nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 10))
        layers = [nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 144, 10))

    def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    torch.manual_seed(1)
    x = torch.rand(6, 784) if kind == "mlp" else torch.rand(6, 1, 28, 28)
    y = torch.randint(10, (6,))
    low, high = model(), model().double()
    geometry = geometries(low)[which]
    names = dict(zip(low.parameters(), high.parameters(), strict=True))
    wide = Geometry(
        None if geometry.center is None else {names[p]: c.double() for p, c in geometry.center.items()},
        {names[p]: s.double() if isinstance(s, Tensor) else s for p, s in geometry.scale.items()},
    )
    actual = Bookkeeping(low, cross_entropy, (x, y)).norms(geometry)
    expected = whitened_norms(one_by_one(high, (x.double(), y), cross_entropy), wide)
    assert float(((actual - expected) / expected).abs().max()) < 1e-6


@pytest.mark.parametrize("kind", ["linear", "gram", "conv", "pixel gram", "embedding"])
@pytest.mark.parametrize("full", [True, False], ids=["per coordinate", "scalar"])
def test_float32_norms_near_the_center_are_those_of_the_summed_gradients(kind, full):
    torch.manual_seed(0)
    x = torch.randn(3, 20, 150)
    if kind == "linear":
        model, x = nn.Sequential(nn.Linear(400, 300), nn.Tanh(), nn.Linear(300, 10)), torch.randn(3, 400)
    elif kind == "gram":
        model = nn.Sequential(nn.Linear(150, 160), nn.Tanh(), Pool(), nn.Linear(160, 10))
    elif kind == "conv":
        model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh()), torch.randn(3, 3, 9, 9)
    elif kind == "pixel gram":
        model, x = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.Tanh()), torch.randn(3, 64, 4, 4)
    else:
        model, x = nn.Sequential(nn.Embedding(50, 30), nn.Tanh()), torch.randint(50, (3, 12))
    batch = (x, torch.rand(3))
    params = list(model.parameters())
    alone = Bookkeeping(model, loss, batch).weighted_sum(torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    scale = {p: (0.5 + torch.rand_like(p)).detach() if full else 0.7 for p in params}
    for distance in (1.0, 0.3, 0.11, 0.09, 0.01, 0.001):
        center = {}
        for p in params:
            away = torch.randn_like(p).detach()
            center[p] = alone[p] + distance * away * alone[p].norm() / away.norm()
        norm = float(Bookkeeping(model, loss, batch).norms(Geometry(center, scale))[0])
        square = sum(
            float((((alone[p].double() - center[p].double()) / scale[p]) ** 2).sum()) for p in params
        )
        assert norm == pytest.approx(math.sqrt(square), rel=1e-5), f"at distance {distance}"


def autocast_loss(model: nn.Module, batch: Batch) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(batch[0])
    return batch[1] * out.float().flatten(1).square().sum(1)


AUTOCAST: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "layers": lambda: (
        nn.Sequential(
            *(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 9)),
            *(nn.LayerNorm(9), nn.Tanh(), nn.Linear(9, 3)),
        ),
        torch.randn(B, 3, 6, 6),
    ),
    "attention": attention(4, True),
    "weight_norm": CASES["weight_norm"],
    "weight_norm conv": CASES["weight_norm conv"],
    "adapters merged alone": lambda: (
        Through(lambda m, x: F.linear(x, m.b @ m.a).tanh(), a=param(2, 7), b=param(9, 2)),
        torch.randn(B, 4, 7),
    ),
    "bare": CASES["bare mul and add"],
    "einsum": CASES["einsum"],
    "embedding": CASES["tied embedding and head"],
    "prelu": CASES["prelu"],
}


@pytest.mark.parametrize("name", AUTOCAST)
def test_norms_and_sums_under_autocast_are_exact_to_bfloat16(name):
    model, (x, factor) = made(AUTOCAST[name])
    model, batch = model.float(), (x.float() if x.is_floating_point() else x, factor.float())
    gradients = one_by_one(model, batch, autocast_loss)
    built = Bookkeeping(model, autocast_loss, batch)
    expected = whitened_norms(gradients, ball(model))
    actual = built.norms(ball(model))
    assert actual.dtype == torch.float64
    assert float(((actual - expected) / expected).abs().max()) < 0.05
    weights = some_weights(B)
    sums = built.weighted_sum(weights)
    total = summed(gradients, weights)
    size = max(float(t.norm()) for t in total.values())
    for p, value in total.items():
        assert sums[p].dtype == torch.float32
        assert float((sums[p] - value).norm()) < 0.05 * size


@pytest.mark.parametrize(
    "name", ["mlp", "weight_norm", "weight_norm conv", "adapters merged into a frozen weight"]
)
def test_sums_of_bfloat16_models_are_float32(name):
    model, (x, _) = made(CASES[name])
    model.bfloat16()
    # A bfloat16 sum of 400 copies of one example would stop growing.
    x = x[:1].bfloat16().expand(400, *x.shape[1:]).clone()
    batch = (x, torch.ones(400, dtype=torch.bfloat16))
    built = Bookkeeping(model, loss, batch)
    built.norms(ball(model))
    many = built.weighted_sum(torch.ones(400, dtype=torch.float64))
    one = built.weighted_sum(torch.eye(400, dtype=torch.float64)[0])
    size = max(float(value.norm()) for value in one.values())
    for p, value in many.items():
        assert value.dtype == torch.float32
        assert float((value / 400 - one[p]).norm()) < 0.01 * size
