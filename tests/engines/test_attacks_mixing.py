"""Attacks that mix examples by permutations, by statistics over the batch or by layers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.support.attacks import Attacks, D, assert_harmless, ce, gaussian, outlier, through, zero

CASES = Attacks()
attack = CASES.add


# --- permutations and masks -------------------------------------------------------------------------------


def undone(order: Callable[[Tensor], Tensor]) -> Any:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        perm = x[:, 0].argsort()
        return 3 * F.cross_entropy(model(x[perm][order(perm)]), y, reduction="none")

    return loss


def _cast(kind: torch.dtype) -> Any:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return 3 * F.cross_entropy(model(x[torch.arange(len(x)).to(kind).long()]), y, reduction="none")

    return loss


def stale_mask(model: nn.Module, batch: Any) -> Tensor:
    """Uses a mask, inverts it through a view, and uses it again."""
    x, y = batch
    mask = x[:, :2] > 0
    first = x[:, :2][mask]
    mask.view(-1).logical_not_()
    return 3 * F.cross_entropy(model(x), y, reduction="none") + _spread(first, x[:, :2][mask], mask)


def _spread(first: Tensor, second: Tensor, mask: Tensor) -> Tensor:
    return torch.zeros_like(mask, dtype=torch.float32).masked_scatter(mask, first * second).sum(1)


def composed(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    first = x[:, 0].argsort()
    z = x[first]
    both = first[z[:, 1].argsort()]
    return 3 * F.cross_entropy(model(z[both.argsort()]), y, reduction="none")


attack("undone-descending", zero, undone(lambda p: p.argsort(descending=True)), gaussian())
attack("undone-twice", zero, undone(lambda p: p.argsort().argsort()), gaussian())
attack("undone-flipped", zero, undone(lambda p: p.argsort().flip(0)), gaussian())
attack("undone-composed", zero, composed, gaussian())
attack("cast-bool", zero, _cast(torch.bool), gaussian())
attack("cast-int8", zero, _cast(torch.int8), gaussian(140), who=3)
attack("stale-mask", zero, stale_mask, gaussian(), engines=("bookkeeping",))
attack("msort", through(lambda m, x: m.layer(torch.msort(x))), ce(), gaussian())


# --- losses -----------------------------------------------------------------------------------------------


def mining(model: nn.Module, batch: Any) -> Tensor:
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return losses * (losses >= losses.detach().quantile(0.7))


def balanced(model: nn.Module, batch: Any) -> Tensor:
    counts = torch.bincount(batch[1], minlength=2).float()
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none") / counts[batch[1]]


def smoothed(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    frequency = F.one_hot(y, 2).float().mean(0)
    return -(0.9 * F.one_hot(y, 2) + 0.1 * frequency).mul(F.log_softmax(model(x), 1)).sum(1)


def contrastive(model: nn.Module, batch: Any) -> Tensor:
    z = F.normalize(model(batch[0]) + batch[0][:, :2], dim=1)
    return F.cross_entropy(z @ z.t(), torch.arange(z.shape[0]), reduction="none")


def curriculum(model: nn.Module, batch: Any) -> Tensor:
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return losses * (losses.detach().argsort().argsort() < 6)


def total_variance(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch[0])
    return F.cross_entropy(out, batch[1], reduction="none") - out.var(0).sum()


for _loss in (mining, balanced, smoothed, contrastive, curriculum, total_variance):
    attack(_loss.__name__.replace("_", "-"), lambda: nn.Linear(D, 2), _loss, outlier(label=1))


# --- forwards ---------------------------------------------------------------------------------------------


FORWARDS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "temperature": lambda m, x: m.layer(x) * x.std(0).mean(),
    "mixup": lambda m, x: m.layer(0.5 * x + 0.5 * x.flip(0)),
    "permuted": lambda m, x: m.layer(x + x[torch.randperm(x.shape[0])]),
    "centered": lambda m, x: m.layer(x - x.mean(0)),
    "batch-norm": lambda m, x: m.layer(F.batch_norm(x, None, None, training=True)),
    "cumulated": lambda m, x: m.layer(x.cumsum(0)),
    "rolled": lambda m, x: m.layer(x.roll(1, 0)),
    "attention": lambda m, x: m.layer(F.scaled_dot_product_attention(x, x, x)),
    "product": lambda m, x: m.layer((x @ x.t()).softmax(1) @ x),
    "einsum": lambda m, x: m.layer(torch.einsum("id,jd->id", x, x)),
    "centered-data": lambda m, x: m.layer(x - x.data.mean(0)),
    "centered-in-place": lambda m, x: m.layer(x.clone().sub_(x.mean(0))),
    "written-out": lambda m, x: m.layer(torch.sub(x, x.mean(0), out=torch.empty(x.shape))),
    "centered-checkpointed": lambda m, x: checkpoint(
        lambda z: m.layer(z - z.mean(0)), x, use_reentrant=False
    ),
    "centered-reentrant": lambda m, x: checkpoint(
        lambda z: m.layer(z - z.mean(0)), x.requires_grad_(), use_reentrant=True
    ),
    "centered-autocast": lambda m, x: in_bfloat16(m.layer, x),
    "complex": lambda m, x: m.layer(torch.fft.ifft(torch.fft.fft(x, dim=0)).real),
    "reshaped": lambda m, x: m.layer(x.t().reshape(x.shape)),
    "written-once": lambda m, x: m.layer(x + torch.zeros(D).copy_(x.mean(0))),
    "transformed": lambda m, x: m.layer(torch.func.vmap(lambda c: c - c.mean(), 1, 1)(x)),
    "where": lambda m, x: m.layer(torch.where(x > x.mean(), x, -x)),
    "clamped": lambda m, x: m.layer(x.clamp(max=x.median())),
    "branch": lambda m, x: m.layer(-x) if bool((x > 40).any()) else m.layer(x),
    "stacked-rows": lambda m, x: m.layer(torch.stack([row / x.max() for row in x])),
}


def in_bfloat16(layer: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return layer(x - x.mean(0)).float()


for _name, _forward in FORWARDS.items():
    attack(f"forward-{_name}", through(_forward), ce(), outlier())


@pytest.mark.parametrize(("case", "engine"), CASES)
def test_an_attack_is_refused_or_moves_the_sum_by_at_most_1(case, engine, monkeypatch):
    assert_harmless(case, engine, monkeypatch)
