"""Models with every kind of record, geometries and a release, for tests of one step."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adamas import Geometry, PrivateGradient
from adamas.engines import Engine, trainable_parameters
from adamas.noise import GaussianNoise
from adamas.privatize import privatize
from tests.support.derived_weights import over_root
from tests.support.one_by_one import ball
from tests.support.through import Through

N = 6


def mlp() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3)), torch.randn(N, 5)


def places() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), torch.randn(N, 12, 5)


def conv() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 3, padding=1))
    return model, torch.randn(N, 3, 6, 6)


def few_pixels() -> tuple[nn.Module, Tensor]:
    """Makes two layers; the gradients of the second are too large to be kept, so its input is."""
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 8, 3, padding=1)), torch.randn(
        N, 3, 4, 4
    )


def standardised_conv() -> tuple[nn.Module, Tensor]:
    model = Through(
        lambda m, x: F.conv2d(m.first(x).tanh(), over_root(m.w), m.b),
        first=nn.Conv2d(3, 4, 3),
        w=nn.Parameter(torch.randn(2, 4, 3, 3)),
        b=nn.Parameter(torch.randn(2)),
    )
    return model, torch.randn(N, 3, 6, 6)


def columns_normalised() -> tuple[nn.Module, Tensor]:
    model = Through(lambda m, x: F.linear(x, F.normalize(m.w, dim=0)), w=nn.Parameter(torch.randn(4, 5)))
    return model, torch.randn(N, 5)


def transformer() -> tuple[nn.Module, Tensor]:
    return nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True), torch.randn(N, 4, 8)


def lstm() -> tuple[nn.Module, Tensor]:
    return Through(lambda m, x: m.rnn(x)[0], rnn=nn.LSTM(4, 5, batch_first=True)), torch.randn(N, 3, 4)


def embedding() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 3))
    return model, torch.randint(11, (N, 5))


def general() -> tuple[nn.Module, Tensor]:
    model = Through(
        lambda m, x: torch.einsum("bi,oi->bo", x, m.w) * m.scale,
        w=nn.Parameter(torch.randn(3, 5)),
        scale=nn.Parameter(torch.randn(3)),
    )
    return model, torch.randn(N, 5)


MODELS = (
    *(mlp, places, conv, few_pixels, standardised_conv, columns_normalised, transformer, lstm, embedding),
    general,
)


def per_coordinate(model: nn.Module) -> Geometry:
    params = trainable_parameters(model).values()
    center = {p: 0.1 * torch.randn(p.shape, dtype=p.dtype) for p in params}
    return Geometry(center, {p: 0.5 + torch.rand(p.shape, dtype=p.dtype) for p in params})


GEOMETRIES = {"flat": ball, "per coordinate": per_coordinate}


def release(
    engines: list[tuple[Engine, int]], geometry: Geometry, noise: GaussianNoise | None = None, z: float = 1.0
) -> PrivateGradient:
    """Releases the mean gradient of some engines, with noise multiplier `z` and expected batch size 8."""
    return privatize(
        engines,
        geometry,
        noise_multiplier=z,
        expected_batch_size=8,
        noise=GaussianNoise(3) if noise is None else noise,
        charge=lambda _: (),
    )
