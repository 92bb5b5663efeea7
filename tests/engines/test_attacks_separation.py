"""Attacks that let an example depend on others: hidden statistics, sizes, permutations, mixing layers."""

import itertools
import math
import operator
import pickle
import queue
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.support.attacks import (
    Attacks,
    D,
    N,
    assert_harmless,
    ce,
    gaussian,
    level,
    outlier,
    through,
    times,
    zero,
)

CASES = Attacks()
attack = CASES.add

# --- a statistic of the batch that comes back as a constant ----------------------------------------------

CONSTANTS: dict[str, Callable[[Tensor], Any]] = {
    "full": lambda x: torch.full((1,), level(x)),
    "full-n": lambda x: torch.full((x.shape[0], 1), level(x)),
    "full-like": lambda x: torch.full_like(x[:, :1], level(x)),
    "new-full": lambda x: x.new_full((x.shape[0], 1), level(x)),
    "pad-value": lambda x: F.pad(x, (0, 1), value=level(x))[:, -1:],
    "arange": lambda x: torch.arange(level(x).long()).sum() / 20,
    "narrow": lambda x: torch.ones(60).narrow(0, 0, level(x).long()).sum(),
    "select": lambda x: torch.arange(60.0).select(0, level(x).long()),
    "new-ones": lambda x: x.new_ones(x.shape[0], level(x).long()).sum(1, keepdim=True),
    "repeat": lambda x: torch.ones(1).repeat(level(x).long()).sum(),
    "expand": lambda x: torch.ones(1).expand(level(x).long()).sum(),
    "one-hot": lambda x: float(F.one_hot(x[:, 0].long(), level(x).long() + 1).shape[1]),
    "leaky-relu": lambda x: -F.leaky_relu(-x[:, :1], level(x)),
    "softplus": lambda x: F.softplus(x[:, :1], beta=level(x)) * 20,
    "broadcast-shapes": lambda x: 200.0 / torch.broadcast_shapes(x.shape, (1, 1))[0],
    "quantize": lambda x: torch.quantize_per_tensor(x, level(x) / 127, 0, torch.qint8).dequantize()[:, :1],
    "sparse": lambda x: x.to_sparse().to_dense().abs().max(),
    "as-tensor": lambda x: torch.as_tensor(x.tolist()).max(),
    "new-tensor": lambda x: x.new_tensor(x).max(),
    "numpy": lambda x: float(np.asarray(x).max()),
    "foreach": lambda x: torch._foreach_abs([x.detach()])[0].max(),
    "masked-mean": lambda x: x[x > 2].sum() / 4 + 1,
    "unique": lambda x: torch.unique(x.detach()).max(),
    "histogram": lambda x: torch.histc(x.detach(), 4).argmin().float() + 1,
    "swap-tensors": lambda x: swapped(x),
    "set": lambda x: torch.empty(0).set_(x).abs().max(),
    "legacy-constructor": lambda x: torch.Tensor(x).abs().max(),
    "nested": lambda x: torch.nested.nested_tensor([x]).to_padded_tensor(0.0).max(),
}


def swapped(x: Tensor) -> Tensor:
    a, b = torch.zeros(x.shape[0], x.shape[1]), x.clone()
    torch.utils.swap_tensors(a, b)
    return a.max()


for _name, _number in CONSTANTS.items():
    attack(f"constant-{_name}", zero, times(_number), outlier())

attack(
    "constant-slice",
    zero,
    times(lambda x: torch.ones(60)[: level(x).long()].sum()),
    outlier(),
)
attack(
    "constant-parameter",
    zero,
    times(lambda x: nn.Parameter(x, requires_grad=False).abs().max()),
    outlier(),
)
attack(
    "constant-dlpack",
    zero,
    times(lambda x: torch.from_dlpack(torch.to_dlpack(x)).abs().max()),
    outlier(),
)
attack(
    "constant-in-a-thread",
    through(lambda m, x: m.layer(x) * in_a_thread(x)),
    ce(0.01),
    outlier(),
)


def in_a_thread(x: Tensor) -> Tensor:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(level, x).result()


# --- the same from some call on, when nobody looks below the functions of Python any more ----------------


def scripted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(_largest)


def _largest(x: Tensor) -> Tensor:
    return x.abs().max()


LATER: dict[str, Callable[[Tensor], Any]] = {
    "torchscript": lambda x: scripted()(x.detach()),
    "legacy-constructor": lambda x: torch.Tensor(x).abs().max(),
    "nested": lambda x: torch.nested.nested_tensor([x]).to_padded_tensor(0.0).max(),
    "set": lambda x: torch.empty(0).set_(x).abs().max(),
    "set-on-data": lambda x: torch.zeros_like(x).set_(x.roll(1, 0)).sum(1, keepdim=True).abs(),
    "traced": lambda x: torch.jit.trace(_largest, torch.zeros(3, D))(x.detach()),
    "script-number": lambda x: _scripted_number()(x.detach()),
    "dlpack": lambda x: torch.from_dlpack(torch.to_dlpack(x)).abs().max(),
    "subclass": lambda x: x.as_subclass(nn.Parameter).detach().abs().max(),
    "make-subclass": lambda x: Tensor._make_subclass(Tensor, x).abs().max(),
    "parameter": lambda x: nn.Parameter(x, requires_grad=False).abs().max(),
    "without-modes": lambda x: _without_modes(x),
    "operator": lambda x: torch.ops.aten.amax.default(x.detach(), [0, 1]),
    "thread": lambda x: in_a_thread(x),
    "thread-number": lambda x: _number_in_a_thread(x),
    "thread-of-before": lambda x: _before_in_a_thread(x),
    "numpy": lambda x: float(np.from_dlpack(x).max()),
    "pickled": lambda x: pickle.loads(pickle.dumps(x)).max(),
    "caught": lambda x: _caught(x),
    "process": lambda x: _in_a_process(x),
    "compiled": lambda x: torch.compile(_largest, backend="eager")(x.detach()),
    "generator": lambda x: next(_largest(part) for part in [torch.Tensor(x)]),
    "vmap": lambda x: torch.func.vmap(_largest)(x.detach().unsqueeze(0))[0],
    "length": lambda x: float(len(torch.Tensor(x[x[:, 0] > 2].repeat(9, 1)))) + 1,
}


def _as_number(x: Tensor) -> float:
    return float(x.abs().max())


def _scripted_number() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(_as_number)


def _without_modes(x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return x.abs().max()


def _number_in_a_thread(x: Tensor) -> float:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_as_number, x).result()


POOL = ThreadPoolExecutor(1)
POOL.submit(int).result()


def _before_in_a_thread(x: Tensor) -> Tensor:
    """Uses a thread that runs already, so that no work is submitted to it."""
    answer: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
    POOL._work_queue.put(_Item(lambda: answer.put(level(x))))
    return answer.get()


@dataclass
class _Item:
    """Work in the queue of a pool."""

    run: Callable[[], None]


def _caught(x: Tensor) -> Any:
    """Catches a refusal, and tries the same call again."""
    largest = torch.Tensor(x)
    for _ in range(3):
        try:
            return largest.abs().max()
        except Exception:
            continue
    return 1.0


def _in_a_process(x: Tensor) -> Any:
    with ProcessPoolExecutor(1) as pool:
        return pool.submit(_as_number, x).result()


def later(number: Callable[[Tensor], Any]) -> Callable[[], nn.Module]:
    def forward(m: Any, x: Tensor) -> Tensor:
        m.calls += 1
        return m.layer(x) * (number(x) if m.calls > 6 else 1.0)

    return through(forward, calls=lambda: 0)


for _name, _number in LATER.items():
    attack(f"constant-{_name}-at-once", zero, times(_number), outlier(), engines=("bookkeeping",))
for _name, _number in LATER.items():
    attack(
        f"later-{_name}",
        later(_number),
        ce(0.01),
        outlier(),
        warm=8,
    )

# --- the number of examples -------------------------------------------------------------------------------

COUNTS: dict[str, Callable[[Tensor], Any]] = {
    "log": lambda x: 1 / math.log(x.shape[0]),
    "size-numel": lambda x: 20 / torch.Size(x.shape).numel(),
    "range": lambda x: 5 / len(range(x.shape[0])),
    "string": lambda x: 5 / int(str(x.shape[0])),
    "hash": lambda x: 5 / hash(x.shape[0]),
    "numpy-ones": lambda x: 5 / float(np.ones(x.shape[0]).sum()),
    "numpy-linspace": lambda x: 5 * float(np.linspace(0, 1, x.shape[0])[1]),
    "list": lambda x: 5 / torch.tensor([1.0 for _ in range(x.shape[0])]).sum(),
    "index": lambda x: 5 / x.shape[0].__index__(),
}
# The number is read right before a function that is given the same number as a size.
COUNTS |= {
    f"{name}-before-a-size": lambda x, read=read: 5 / read(x.shape[0], x) + 0 * torch.zeros(x.shape[0], 1)
    for name, read in {
        "range": lambda n, x: len(range(n)),
        "list": lambda n, x: len([0] * n),
        "slice": lambda n, x: len(list(range(100))[:n]),
        "comb": lambda n, x: math.comb(n, 1),
        "bytes": lambda n, x: len(bytes(n)),
        "numpy": lambda n, x: np.zeros(n).size,
        "operator": lambda n, x: operator.index(n),
        "string": lambda n, x: len("a" * n),
        "islice": lambda n, x: len(list(itertools.islice(itertools.count(), n))),
        "hex": lambda n, x: int(hex(n), 16),
        "within": lambda n, x: x.new_zeros(n, len(range(n))).shape[1],
        "view": lambda n, x: x.view(n, -1).shape[1] * len(range(n)) / 4,
    }.items()
}
for _name, _number in COUNTS.items():
    attack(
        f"count-{_name}",
        zero,
        times(_number, 1.0),
        outlier(label=1),
    )
for _name, _number in {
    "numpy-prod": lambda x: 20 / float(np.prod(x.shape)),
    "numpy-sqrt": lambda x: 5 / float(np.sqrt(x.shape[0])),
    "divided": lambda x: 5 / x.shape[0],
    "length": lambda x: 5 / len(x),
    "numerator": lambda x: 5 / x.shape[0].numerator,
    "bits": lambda x: 5 / x.shape[0].bit_length(),
    "pieces": lambda x: 5 / len(x.split(1)),
    "rows": lambda x: 5 / len(list(x)),
    "bytes": lambda x: 200 / x.nbytes,
    "strides": lambda x: 5 / x.t().contiguous().stride(0),
    "ones": lambda x: 5 / torch.ones(x.shape[0]).sum(),
    "eye": lambda x: 5 / torch.eye(x.shape[0]).sum(),
    "linspace": lambda x: 5 / torch.linspace(0, 1, x.shape[0]).numel(),
}.items():
    attack(f"count-{_name}", zero, times(_number, 1.0), outlier(label=1), engines=("bookkeeping",))


class Squeezed(nn.Module):
    """The first token of a sequence, after a squeeze that also removes the axis of a single example."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = x.squeeze()
        first = self.layer(z[:, 0])
        return first if z.dim() == 3 else first.unsqueeze(0)


attack(
    "batch-of-one-squeezed",
    Squeezed,
    ce(10.0),
    gaussian(N, 1, 8, 8),
    sets=([0, 1], [0]),
    warm=1,
)

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
    """A mask that is used, inverted through a view, and used again."""
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

# --- mixing that everybody knows --------------------------------------------------------------------------


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
