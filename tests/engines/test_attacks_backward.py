"""Attacks in the backward: custom functions, hooks and saved tensors; and computations that are sound."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from tests.support.attacks import EVERY, Attacks, D, N, assert_harmless, ce, gaussian, outlier, through

CASES = Attacks()
attack = CASES.add


# --- models and data --------------------------------------------------------------------------------------


def one_far_target() -> TensorDataset:
    """Makes data whose targets are 1, except for a huge one."""
    x = gaussian().tensors[0]
    return TensorDataset(x, torch.tensor([[1.0]] * (N - 1) + [[1e4]]))


def squared(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]) - batch[1]).square().sum(1)


class Lambda(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def hidden(function: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(D, 8), Lambda(function), nn.Linear(8, 1).requires_grad_(False))


# --- custom functions -------------------------------------------------------------------------------------


class Scaled(torch.autograd.Function):
    """Takes a number and data; the backward divides by the norm over the batch."""

    @staticmethod
    def forward(ctx: Any, factor: float, x: Tensor) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return None, ctx.factor * g / g.norm()


class Two(torch.autograd.Function):
    """Has two outputs; the backward divides by the norm over the batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x.view_as(x), x.sum(1)

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> Any:
        return 10 * g / g.norm()


attack("custom-number-first", hidden(lambda h: Scaled.apply(10.0, h)), squared, one_far_target)
attack(
    "custom-two-outputs-reentrant",
    hidden(lambda h: checkpoint(lambda z: Two.apply(z)[0], h, use_reentrant=True)),
    squared,
    one_far_target,
)
attack("custom-two-outputs", hidden(lambda h: Two.apply(h)[0]), squared, one_far_target)
attack(
    "custom-two-outputs-checkpointed",
    hidden(lambda h: checkpoint(lambda z: Two.apply(z)[0], h, use_reentrant=False)),
    squared,
    one_far_target,
)


def saliency(m: Any, x: Tensor) -> Tensor:
    z = x.detach().clone().requires_grad_()
    (g,) = torch.autograd.grad(Two.apply(m.teacher(z))[0].square().sum(), z)
    return m.layer(x * g.detach())


attack(
    "custom-in-an-inner-gradient",
    through(saliency, teacher=lambda: nn.Sequential(nn.Linear(D, 4), nn.ReLU()).requires_grad_(False)),
    ce(),
    outlier(big=500.0),
)


class Saved(torch.autograd.Function):
    """Saves its output, and scales gradients by the largest value in the batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x * 2
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return g * y.abs().max()


class Kept(torch.autograd.Function):
    """Does the same with a copy of its input that the engine does not see."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.level = torch.Tensor(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.level.abs().max()


class Between(nn.Module):
    """Two layers; after some calls, a function is applied between them."""

    def __init__(self, between: Callable[[Tensor], Tensor], after: int = 0) -> None:
        super().__init__()
        self.calls, self.after = 0, after
        self.first, self.second, self.between = nn.Linear(D, D, bias=False), nn.Linear(D, 2), between
        self.second.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = self.first(x)
        return self.second(self.between(h) if self.calls > self.after else h)


for _name, _function in (("saved-output", Saved), ("kept", Kept)):
    attack(
        f"backward-{_name}",
        functools.partial(Between, lambda h, f=_function: f.apply(h)),
        ce(1e-3),
        outlier(),
        engines=("bookkeeping",),
    )
    attack(
        f"later-backward-{_name}",
        functools.partial(Between, lambda h, f=_function: f.apply(h), 6),
        ce(1e-3),
        outlier(),
        warm=8,
        engines=("bookkeeping",),
    )


# --- saved tensors ----------------------------------------------------------------------------------------


def packed(pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    def forward(m: Any, x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return m.last(torch.tanh(m.first(x)))

    return forward


def int8(t: Tensor) -> Any:
    t = t.detach()
    scale = t.abs().max().clamp(min=1e-8) / 7
    return (t / scale).round().to(torch.int8), scale


PARTS = {"first": lambda: nn.Linear(D, 8), "last": lambda: nn.Linear(8, 2)}

attack(
    "saved-tensors-scaled",
    through(packed(lambda t: t.detach() / t.detach().abs().max(), lambda t: t), **PARTS),
    ce(0.3),
    outlier(),
)
attack(
    "saved-tensors-int8",
    through(packed(int8, lambda kept: kept[0].float() * kept[1]), **PARTS),
    ce(0.3),
    outlier(),
)


# --- hooks ------------------------------------------------------------------------------------------------


class Behind(nn.Module):
    """A weight that may be a function of its parameter, with a hook on the gradient of either."""

    def __init__(
        self, hook: Callable[[Tensor], Tensor], *, on_weight: bool = False, derived: bool = True
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, D))
        self.hook, self.on_weight, self.derived = hook, on_weight, derived
        if not on_weight:
            self.weight.register_hook(hook)

    def forward(self, x: Tensor) -> Tensor:
        w = torch.tanh(self.weight) if self.derived else self.weight
        if self.on_weight and w.requires_grad:
            w.register_hook(self.hook)
        return F.linear(x, w)


attack("hook-sign", lambda: Behind(torch.sign), ce(50.0), outlier(label=1), engines=EVERY)
attack(
    "hook-normalised",
    lambda: Behind(lambda g: g / (g.norm() + 1e-12)),
    ce(50.0),
    outlier(label=1),
    engines=EVERY,
)
attack("hook-on-weight", lambda: Behind(torch.sign, on_weight=True), ce(50.0), outlier(label=1))
attack("hook-plain", lambda: Behind(torch.sign, derived=False), ce(50.0), outlier(label=1), engines=EVERY)
attack(
    "hook-clamped", lambda: Behind(lambda g: g.clamp(-0.01, 0.01)), ce(50.0), outlier(label=1), engines=EVERY
)


def with_hook(kind: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, 2))
        if kind == "full":
            model[1].register_full_backward_hook(lambda m, gi, go: (gi[0] / gi[0].norm(),))
        else:
            model[1].register_full_backward_pre_hook(lambda m, go: (go[0] / go[0].norm(),))
        return model

    return make


attack("module-hook", with_hook("full"), ce(), outlier())
attack("module-pre-hook", with_hook("pre"), ce(), outlier())


# --- sound computations -----------------------------------------------------------------------------------


class Reversed(torch.autograd.Function):
    """Reverses and scales the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return -ctx.factor * g, None


def distilled(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        goal = m.teacher(x).softmax(1)
    return m.layer(x) * goal


SOUND: dict[str, Any] = {
    "reversed": hidden(lambda h: Reversed.apply(h, 3.0)),
    "checkpointed": hidden(lambda h: checkpoint(torch.tanh, h, use_reentrant=False)),
    "skipped": hidden(lambda h: torch.tanh(h) if torch.rand(()) > 0.5 else h),
    "group-norm": hidden(lambda h: F.group_norm(h, 2)),
    "in-place": hidden(lambda h: h.mul_(3.0).relu_()),
    "sorted": hidden(lambda h: h.sort(1).values),
}
for _name, _model in SOUND.items():
    attack(f"sound-{_name}", _model, squared, one_far_target, engines=EVERY)


attack(
    "sound-distilled",
    through(distilled, teacher=lambda: nn.Linear(D, 2).requires_grad_(False)),
    ce(10.0),
    gaussian(),
    engines=EVERY,
)


@pytest.mark.parametrize(("case", "engine"), CASES)
def test_an_attack_is_refused_or_moves_the_sum_by_at_most_1(case, engine, monkeypatch):
    assert_harmless(case, engine, monkeypatch)
