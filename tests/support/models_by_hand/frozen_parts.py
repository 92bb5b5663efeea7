"""Models with frozen parameters, or with parameters that the forward does not use."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.models_by_hand.parts import B, Build, param
from tests.support.through import Through


def frozen(model: nn.Module, *names: str) -> nn.Module:
    """Freezes the parameters of these names, and no others."""
    for name, p in model.named_parameters():
        p.requires_grad_(name not in names)
    return model


def adapters(forward: Callable[..., Tensor], *size: int, **more: Callable[[], nn.Parameter]) -> Build:
    """Makes low-rank factors `a` and `b` beside a frozen layer `base`."""

    def build() -> tuple[nn.Module, Tensor]:
        parts = {"base": nn.Linear(7, 9), "a": param(2, 7), "b": param(9, 2)}
        model = Through(forward, **parts, **{name: make() for name, make in more.items()})
        return frozen(model, "base.weight", "base.bias"), torch.randn(B, *size, 7)

    return build


CASES: dict[str, Build] = {
    "adapters beside a frozen layer": adapters(
        lambda m, x: m.base(x) + 0.5 * F.linear(F.linear(x, m.a), m.b), 4
    ),
    "adapters merged into a frozen weight": adapters(
        lambda m, x: F.linear(x, m.base.weight + m.b @ m.a).tanh(), 4
    ),
    "adapters with directions and magnitudes": adapters(
        lambda m, x: F.linear(x, m.g * F.normalize(m.base.weight + m.b @ m.a, dim=1)).tanh(),
        g=lambda: param(9, 1),
    ),
    "biases only": lambda: (
        frozen(
            nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.LayerNorm(9), nn.Linear(9, 3)),
            "0.weight",
            "2.weight",
            "3.weight",
        ),
        torch.randn(B, 4, 7),
    ),
    "weights only": lambda: (
        frozen(
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(36, 3)),
            "0.bias",
            "1.bias",
            "3.bias",
        ),
        torch.randn(B, 3, 5, 5),
    ),
    "frozen in the middle": lambda: (
        frozen(
            nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 3)),
            "2.weight",
            "2.bias",
        ),
        torch.randn(B, 7),
    ),
    "unused": lambda: (
        Through(lambda m, x: m.used(x).tanh(), unused=nn.Linear(2, 2), used=nn.Linear(7, 3)),
        torch.randn(B, 7),
    ),
}
