"""Attacks on the promise that one record moves the whitened sum by at most 1, through the public door.

Each attack is a model, a loss, a collate_fn or a data set that somebody could write without bad intentions,
with one record that is made to show. It must be refused, or the sum must move by at most 1. A run has
sampling rate 1 and silent noise; the sums with and without the record are compared. Attacks that are known
to succeed are expected failures, each with the reason.
"""

import array
import collections
import contextvars
import functools
import itertools
import math
import operator
import pickle
import queue
import random
import sys
import threading
import types
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, TensorDataset

import adamas
from adamas import UnsupportedError, rules
from adamas.check.replay import Silent, joined, release_of, run_geometry, whitened_sums
from adamas.engines.base import Materialized

N, D = 12, 4
BIG = 50.0
LIMIT = 1 + 3e-6  # 1e-6, and the rounding of float32 sums of some dozen examples
FAST = ("auto", "bookkeeping")
SLOW = ("auto", "loop")
EVERY = ("auto", "bookkeeping", "vmap", "loop")


@dataclass
class Attack:
    """What is tried.

    Attributes:
        model: Makes the model; also resets what the attack keeps elsewhere.
        loss: One loss per example.
        dataset: The data, or a function that makes it.
        who: The record that is removed.
        sets: The two sets of records that are compared, if they are others than all and all but that record.
        warm: Releases on all records before, which change no parameter.
        cache: Bytes of gradients that the slow engines keep.
        rule: Makes the rule.
        options: More arguments of `make_private`.
    """

    model: Callable[[], nn.Module]
    loss: Any
    dataset: Any
    who: int = N - 1
    sets: tuple[Sequence[int], Sequence[int]] | None = None
    warm: int = 0
    cache: int | None = None
    rule: Any = rules.SGD
    options: dict[str, Any] = field(default_factory=dict)


CASES: list[Any] = []


def attack(
    name: str,
    model: Any,
    loss: Any,
    dataset: Any,
    *,
    engines: Sequence[str] = FAST,
    open: str | None = None,
    open_on: Sequence[str] | None = None,
    options: dict[str, Any] | None = None,
    **rest: Any,
) -> None:
    """Adds a case for each engine; `open` is the reason why it succeeds, on the engines of `open_on`."""
    case = Attack(model, loss, dataset, options=options or {}, **rest)
    for engine in engines:
        fails = open is not None and engine in (open_on or engines)
        marks = [pytest.mark.xfail(strict=True, raises=AssertionError, reason=open)] if fails else []
        CASES.append(pytest.param(case, engine, id=f"{name}-{engine}", marks=marks))


def released(case: Attack, engine: str, indices: Sequence[int]) -> Tensor:
    """The whitened sum of a release on some records, by a fresh run."""
    torch.manual_seed(0)
    dataset = case.dataset() if callable(case.dataset) else case.dataset
    model = case.model()
    n = len(dataset)
    run = adamas.make_private(
        model,
        case.rule(model.parameters(), lr=0.1),
        dataset,
        case.loss,
        engine=engine,
        seed=0,
        **{"batch_size": n, "steps": 30, "noise_multiplier": 1.0, "delta": 1e-6, "accountant": "rdp"}
        | case.options,
    )
    run.noise = Silent(run.noise.seed)
    for step in range(case.warm):
        release_of(run, range(n), step)
    return joined(whitened_sums(run, release_of(run, indices, case.warm), run_geometry(run)))


def influence(case: Attack, engine: str) -> float:
    """How far the record moves the whitened sum."""
    n = len(case.dataset() if callable(case.dataset) else case.dataset)
    sets = case.sets or (range(n), [i for i in range(n) if i != case.who])
    together, without = (released(case, engine, indices) for indices in sets)
    return float((together - without).norm())


# --- data, models and losses that many attacks share -----------------------------------------------------


def outlier(
    n: int = N, *, at: int = -1, size: Sequence[int] = (D,), label: int = 0, big: float = BIG
) -> TensorDataset:
    """Equal examples, but for one that is large."""
    x, y = torch.ones(n, *size), torch.zeros(n, dtype=torch.long)
    x[at], y[at] = big, label
    return TensorDataset(x, y)


def gaussian(n: int = N, *size: int, classes: int = 2, seed: int = 0) -> TensorDataset:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *(size or (D,)), generator=draw)
    return TensorDataset(x, torch.randint(0, classes, (n,), generator=draw))


def zero(inputs: int = D, outputs: int = 2) -> nn.Linear:
    """A linear layer of zeros: its gradients are those that one expects."""
    layer = nn.Linear(inputs, outputs)
    for p in layer.parameters():
        nn.init.zeros_(p)
    return layer


class Through(nn.Module):
    """A linear layer and a forward that is a function of the module and its input."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self.layer = zero()
        self._through = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self._through(self, x)


def through(forward: Callable[[Any, Tensor], Tensor], **parts: Callable[[], Any]) -> Callable[[], nn.Module]:
    return lambda: Through(forward, **{name: part() for name, part in parts.items()})


def ce(weight: float = 1.0) -> Any:
    return lambda model, batch: weight * F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def times(number: Callable[[Tensor], Any], weight: float = 0.01) -> Any:
    """A loss whose logits are multiplied by something of the batch."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return weight * F.cross_entropy(model(x) * number(x), y, reduction="none")

    return loss


def level(x: Tensor) -> Tensor:
    return x.detach().abs().max()


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
    """A thread that is there already, which no submission shows."""
    answer: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
    POOL._work_queue.put(_Item(lambda: answer.put(level(x))))
    return answer.get()


@dataclass
class _Item:
    """Work in the queue of a pool."""

    run: Callable[[], None]


def _caught(x: Tensor) -> Any:
    """Takes what it is refused once as a reason to try it again."""
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
    "centred": lambda m, x: m.layer(x - x.mean(0)),
    "batch-norm": lambda m, x: m.layer(F.batch_norm(x, None, None, training=True)),
    "cumulated": lambda m, x: m.layer(x.cumsum(0)),
    "rolled": lambda m, x: m.layer(x.roll(1, 0)),
    "attention": lambda m, x: m.layer(F.scaled_dot_product_attention(x, x, x)),
    "product": lambda m, x: m.layer((x @ x.t()).softmax(1) @ x),
    "einsum": lambda m, x: m.layer(torch.einsum("id,jd->id", x, x)),
    "centred-data": lambda m, x: m.layer(x - x.data.mean(0)),
    "centred-in-place": lambda m, x: m.layer(x.clone().sub_(x.mean(0))),
    "written-out": lambda m, x: m.layer(torch.sub(x, x.mean(0), out=torch.empty(x.shape))),
    "centred-checkpointed": lambda m, x: checkpoint(lambda z: m.layer(z - z.mean(0)), x, use_reentrant=False),
    "centred-reentrant": lambda m, x: checkpoint(
        lambda z: m.layer(z - z.mean(0)), x.requires_grad_(), use_reentrant=True
    ),
    "centred-autocast": lambda m, x: in_bfloat16(m.layer, x),
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

# --- the backward -----------------------------------------------------------------------------------------


class Scaled(torch.autograd.Function):
    """A number and data; the gradient has one length over the batch."""

    @staticmethod
    def forward(ctx: Any, factor: float, x: Tensor) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return None, ctx.factor * g / g.norm()


class Two(torch.autograd.Function):
    """Two outputs; the gradient has one length over the batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x.view_as(x), x.sum(1)

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> Any:
        return 10 * g / g.norm()


def reached() -> TensorDataset:
    """Targets of 1, and one that is far away."""
    x = gaussian().tensors[0]
    return TensorDataset(x, torch.tensor([[1.0]] * (N - 1) + [[1e4]]))


def squared(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]) - batch[1]).square().sum(1)


def hidden(function: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(D, 8), Lambda(function), nn.Linear(8, 1).requires_grad_(False))


class Lambda(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


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
    "custom-number-first",
    hidden(lambda h: Scaled.apply(10.0, h)),
    squared,
    reached,
)
attack(
    "custom-two-outputs-reentrant",
    hidden(lambda h: checkpoint(lambda z: Two.apply(z)[0], h, use_reentrant=True)),
    squared,
    reached,
)
attack("custom-two-outputs", hidden(lambda h: Two.apply(h)[0]), squared, reached)
attack(
    "custom-two-outputs-checkpointed",
    hidden(lambda h: checkpoint(lambda z: Two.apply(z)[0], h, use_reentrant=False)),
    squared,
    reached,
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


class Behind(nn.Module):
    """A weight behind a function, with a hook on its gradient."""

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


attack(
    "hook-sign",
    lambda: Behind(torch.sign),
    ce(50.0),
    outlier(label=1),
    engines=EVERY,
    open_on=FAST,
)
attack(
    "hook-normalised",
    lambda: Behind(lambda g: g / (g.norm() + 1e-12)),
    ce(50.0),
    outlier(label=1),
    engines=EVERY,
    open_on=FAST,
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

# --- state ------------------------------------------------------------------------------------------------

EARLY = functools.partial(outlier, at=3)  # not among the examples of a probe, and before the others
KEPT: dict[str, Any] = {}


def remembering(
    start: Callable[[Any], None], largest: Callable[[Any, float], float]
) -> Callable[[], nn.Module]:
    """A model that multiplies by the largest value that it has seen."""

    def forward(m: Any, x: Tensor) -> Tensor:
        return m.layer(x) * largest(m, float(x.detach().abs().max()))

    def make() -> nn.Module:
        model = Through(forward)
        start(model)
        return model

    return make


def _named(name: str, start: Any, kind: Callable[[float], Any] = float) -> Callable[[], nn.Module]:
    def largest(m: Any, value: float) -> float:
        setattr(m, name, kind(max(float(getattr(m, name)), value)))
        return float(getattr(m, name))

    return remembering(lambda m: setattr(m, name, start), largest)


def _in(get: Callable[[Any], Any], key: Any, start: Callable[[Any], None]) -> Callable[[], nn.Module]:
    def largest(m: Any, value: float) -> float:
        get(m)[key] = max(get(m)[key], value)
        return float(get(m)[key])

    return remembering(start, largest)


class Bag:
    """An object with attributes."""


class Shared(Through):
    """A running maximum as an attribute of the class."""

    largest = 1.0


def shared() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        Shared.largest = max(Shared.largest, float(x.detach().abs().max()))
        return m.layer(x) * Shared.largest

    Shared.largest = 1.0
    return Shared(forward)


def _set(m: Any, value: float) -> float:
    m.seen.add(round(value))
    return float(max(m.seen))


def _counted(m: Any, value: float) -> float:
    m.seen[round(value)] += 1
    return float(max(m.seen))


def _generated() -> Any:
    largest = 1.0
    while True:
        largest = max(largest, (yield largest))


def _generator(m: Any) -> None:
    m.seen = _generated()
    next(m.seen)


def _queued(m: Any, value: float) -> float:
    m.queue.data[5, 1 + m.at % 4000] = value
    m.at += 1
    return float(m.queue[5].max())


def _queue(m: Any) -> None:
    m.register_buffer("queue", torch.ones(128, 4096))
    m.at = 0


def _deep(m: Any) -> None:
    m.bag = Bag()
    m.bag.inner = Bag()
    m.bag.inner.largest = 1.0


UNWATCHED = {
    "integer": _named("seen", 1, int),
    "string": _named("seen", "1", str),
    "class": shared,
    "global": _in(lambda m: KEPT, "largest", lambda m: KEPT.update(largest=1.0)),
    "set": remembering(lambda m: setattr(m, "seen", {1}), _set),
    "counter": remembering(lambda m: setattr(m, "seen", collections.Counter({1: 1})), _counted),
    "object-in-an-object": _in(lambda m: vars(m.bag.inner), "largest", _deep),
    "list-in-a-mapping": _in(
        lambda m: m.seen["a"]["b"], 0, lambda m: setattr(m, "seen", {"a": {"b": [1.0]}})
    ),
    "array-in-lists": _in(lambda m: m.seen[0][0], 0, lambda m: setattr(m, "seen", [[np.ones(1)]])),
    "generator": remembering(_generator, lambda m, value: m.seen.send(value)),
    "queue-by-data": remembering(_queue, _queued),
}


def _previous(m: Any, value: float) -> float:
    """The value of the example before; the last example puts back what was there."""
    before, m.seen = m.seen, round(value)
    return float(before)


class Slotted:
    __slots__ = ("largest",)


def _slotted(m: Any) -> None:
    m.bag = Slotted()
    m.bag.largest = 1.0


def _in_slots(m: Any, value: float) -> float:
    m.bag.largest = max(m.bag.largest, value)
    return float(m.bag.largest)


def _default(m: Any, value: float, kept: list[float] = [1.0]) -> float:  # noqa: B006
    kept[0] = max(kept[0], value)
    return kept[0]


def _function(m: Any, value: float) -> float:
    _function.largest = max(_function.largest, value)
    return float(_function.largest)


@functools.lru_cache
def _box() -> list[float]:
    return [1.0]


def _cached(m: Any, value: float) -> float:
    _box()[0] = max(_box()[0], value)
    return _box()[0]


STORE = types.ModuleType("a_module_of_the_users")
sys.modules[STORE.__name__] = STORE


def _in_a_module(m: Any, value: float) -> float:
    STORE.largest = max(STORE.largest, value)
    return float(STORE.largest)


def _imported(m: Any, value: float) -> float:
    import a_module_of_the_users as store

    store.largest = max(store.largest, value)
    return float(store.largest)


def _on_a_tensor(m: Any, value: float) -> float:
    m.layer.weight.largest = max(m.layer.weight.largest, value)
    return float(m.layer.weight.largest)


def _gradient(m: Any, value: float) -> float:
    m.goal.grad.data.clamp_(min=value)
    return float(m.goal.grad)


def _with_gradient(m: Any) -> None:
    m.goal = torch.ones((), requires_grad=True)
    m.goal.grad = torch.ones(())
    m.goal.requires_grad_(False)


def _seeded(seed: Callable[[int], Any], draw: Callable[[], float]) -> Callable[[], nn.Module]:
    """The example before has seeded the generator: it draws a small number, or a large one."""

    def largest(m: Any, value: float) -> float:
        drawn = draw()
        seed(round(value))
        return 100 * drawn

    return remembering(lambda m: seed(1), largest)


OWN = random.Random(1)
LOCAL = threading.local()
VARIABLE: contextvars.ContextVar[float] = contextvars.ContextVar("largest", default=1.0)


def _local(m: Any, value: float) -> float:
    LOCAL.largest = max(getattr(LOCAL, "largest", 1.0), value)
    return float(LOCAL.largest)


def _variable(m: Any, value: float) -> float:
    VARIABLE.set(max(VARIABLE.get(), value))
    return VARIABLE.get()


def _in_bytes(m: Any, value: float) -> float:
    m.seen[0] = max(m.seen[0], round(value))
    return float(m.seen[0])


def _counts(m: Any, value: float) -> float:
    while next(m.seen) < value:
        pass
    return float(m.seen.__reduce__()[1][0])


class Remembering(torch.autograd.Function):
    """Keeps a number in its backward, which no forward sees."""

    largest = 1.0

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: float) -> Tensor:
        ctx.value = value
        return x * Remembering.largest

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        Remembering.largest = max(Remembering.largest, ctx.value)
        return g * Remembering.largest, None


def in_the_backward() -> nn.Module:
    Remembering.largest = 1.0
    return Through(lambda m, x: Remembering.apply(m.layer(x), float(x.detach().abs().max())))


def by_a_hook() -> nn.Module:
    kept = [1.0]
    model = Through(lambda m, x: m.layer(x) * kept[0])
    model.layer.register_forward_hook(
        lambda m, x, out: kept.__setitem__(0, max(kept[0], float(x[0].abs().max())))
    )
    return model


UNWATCHED |= {
    "previous": remembering(lambda m: setattr(m, "seen", 1), _previous),
    "slots": remembering(_slotted, _in_slots),
    "default": remembering(lambda m: _default.__defaults__[0].__setitem__(0, 1.0), _default),
    "function": remembering(lambda m: setattr(_function, "largest", 1.0), _function),
    "cache": remembering(lambda m: _box().__setitem__(0, 1.0), _cached),
    "module": remembering(lambda m: setattr(STORE, "largest", 1.0), _in_a_module),
    "imported": remembering(lambda m: setattr(STORE, "largest", 1.0), _imported),
    "tensor": remembering(lambda m: setattr(m.layer.weight, "largest", 1.0), _on_a_tensor),
    "gradient": remembering(_with_gradient, _gradient),
    "python-seed": _seeded(random.seed, random.random),
    "numpy-seed": _seeded(np.random.seed, np.random.random),
    "torch-seed": _seeded(torch.manual_seed, lambda: float(torch.initial_seed())),
    "own-seed": _seeded(OWN.seed, OWN.random),
    "thread-local": remembering(lambda m: setattr(LOCAL, "largest", 1.0), _local),
    "context-variable": remembering(lambda m: VARIABLE.set(1.0), _variable),
    "iterator": remembering(lambda m: setattr(m, "seen", itertools.count()), _counts),
    "bytes": remembering(lambda m: setattr(m, "seen", bytearray([1])), _in_bytes),
    "deque": _in(lambda m: m.seen, 0, lambda m: setattr(m, "seen", collections.deque([1]))),
    "array": _in(lambda m: m.seen, 0, lambda m: setattr(m, "seen", array.array("d", [1.0]))),
    "backward": in_the_backward,
    "hook": by_a_hook,
}
for _name, _model in UNWATCHED.items():
    attack(
        f"state-{_name}",
        _model,
        ce(0.01),
        EARLY,
        who=3,
        engines=SLOW,
    )
WATCHED = {
    "number": _named("seen", 1.0),
    "list": _in(lambda m: m.seen, 0, lambda m: setattr(m, "seen", [1.0])),
    "mapping": _in(lambda m: m.seen, "a", lambda m: setattr(m, "seen", {"a": 1.0})),
    "array": _in(lambda m: m.seen, 0, lambda m: setattr(m, "seen", np.ones(1))),
    "object": _in(
        lambda m: vars(m.bag),
        "largest",
        lambda m: setattr(m, "bag", Bag()) or vars(m.bag).update(largest=1.0),
    ),
}
for _name, _model in WATCHED.items():
    attack(f"state-{_name}", _model, ce(0.01), EARLY, who=3, engines=SLOW)


def bank(m: Any, x: Tensor) -> Tensor:
    m.bank = torch.cat([m.bank[1:], x.detach().mean(0, keepdim=True)])
    return m.layer(x) * m.bank.max()


def queue_in_place(m: Any, x: Tensor) -> Tensor:
    m.bank[0] = x.detach().max()
    return m.layer(x) * m.bank.max()


OLD: list[Tensor] = []


def old_tensors(m: Any, x: Tensor) -> Tensor:
    OLD.append(x.detach())
    return m.layer(x) * (OLD[-2].abs().max() if len(OLD) > 6 else 1.0)


attack("state-bank", through(bank, bank=lambda: torch.ones(4, D)), ce(0.01), EARLY, who=3)
attack("state-bank-in-place", through(queue_in_place, bank=lambda: torch.ones(4)), ce(0.01), EARLY, who=3)
attack("state-old-tensors", lambda: OLD.clear() or Through(old_tensors), ce(0.01), EARLY, who=3, warm=8)

# --- norms are taken of other gradients than are summed ---------------------------------------------------


def _alternating(m: Any, x: Tensor) -> Tensor:
    m.calls += 1
    return m.layer(x) * (1e-3 if m.calls % 2 else 100.0)


class Drawn(nn.Module):
    """Draws a factor, by a generator that the engine does not know."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.layer, self.draw = zero(), draw

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * 10 ** (6 * self.draw() - 3)


for _name, _model in (
    ("in-place", through(lambda m, x: m.layer(x.mul_(10.0)))),
    ("counter", through(_alternating, calls=lambda: 0)),
    ("python-random", lambda: Drawn(random.Random(6).random)),
    ("numpy-random", lambda: Drawn(np.random.default_rng(0).random)),
):
    attack(
        f"twice-{_name}",
        _model,
        ce(10.0),
        outlier(big=1.0),
        cache=0,
        sets=([0], []),
        engines=("vmap", "loop"),
    )

attack(
    "count-of-calls",
    through(_alternating, calls=lambda: 0),
    ce(10.0),
    lambda: outlier(N, big=1.0),
    who=0,
    options={"micro_batch_size": 3},
    engines=("bookkeeping", "vmap", "loop"),
)

# --- batches ----------------------------------------------------------------------------------------------


class Items(Dataset[Any]):
    """Examples one by one, for a collate_fn."""

    def __init__(self, x: Any, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> Any:
        return self.x[i].clone(), self.y[i]


def stacked(examples: list[Any]) -> tuple[Tensor, Tensor]:
    return torch.stack([x for x, _ in examples]), torch.stack([y for _, y in examples])


def items(n: int = N, at: int = -1) -> Items:
    return Items(*outlier(n, at=at).tensors)


def flipped(examples: list[Any]) -> Any:
    x, y = stacked(examples)
    return (-x if torch.rand(()) < 0.5 else x) * x.abs().max(), y


def neighbours(examples: list[Any]) -> Any:
    x, y = stacked(examples)
    x = x + 1e-3 * torch.randn_like(x)
    return 0.5 * x + 0.5 * x.roll(1, 0), y


def centred(examples: list[Any]) -> Any:
    x, y = stacked(examples)
    return x - x.mean(0), y


def beside_timestamps(examples: list[Any]) -> Any:
    x, y = stacked(examples)
    return torch.cat([x * x.abs().max(), torch.full((len(x), 1), 1.7e9)], 1), y


def many(examples: list[Any]) -> Any:
    x, y = stacked(examples)
    return (x * x.abs().max() if len(examples) > 256 else x), y


def rare(examples: list[Any]) -> Any:
    x, y = stacked(examples)
    return (x * x.abs().max() if x.abs().max() > 45 else x), y


def left_behind(examples: list[Any]) -> Any:
    x, y = stacked(examples)
    KEPT["level"] = float(x.abs().max())
    return x, y


def rounded(examples: list[Any]) -> Any:
    """Times beside which a value of the batch is as small as a rounding."""
    x, y = stacked(examples)
    return torch.cat([x, 1.7e9 + 128 * x.abs().max().round().expand(len(x), 1)], 1), y


class Standardised:
    """Divides by a statistic of the first batch."""

    def __init__(self) -> None:
        self.level: float | None = None

    def __call__(self, examples: list[Any]) -> Any:
        x, y = stacked(examples)
        if self.level is None and len(x) > 2:
            self.level = float(x.abs().max())
        return x * (self.level or 1.0), y


def random_and_rare(examples: list[Any]) -> Any:
    x, y = stacked(examples)
    x = x + 1e-3 * torch.randn_like(x)
    return (x * x.abs().max() if x.abs().max() > 45 else x), y


def random_draws(examples: list[Any]) -> Any:
    """Draws more numbers if one example is large, so that no comparison tells mixing from other draws."""
    x, y = stacked(examples)
    large = bool(x.abs().max() > 45)
    x = x + 1e-3 * torch.randn(len(x) + large, D)[: len(x)]
    return (x * x.abs().max() if large else x), y


class AtOnce(Items):
    """Loads a batch at once, and mixes."""

    def __getitems__(self, indices: list[int]) -> Any:
        examples = [self[i] for i in indices]
        largest = max(float(x.abs().max()) for x, _ in examples)
        return [(x * largest, y) for x, y in examples]


class Slots(dict[str, Tensor]):
    """A mapping with an attribute that is no item, and no room for others."""

    __slots__ = ("level",)


def in_slots(examples: list[Any]) -> Any:
    batch = Slots(zip("xy", stacked(examples), strict=True))
    batch.level = batch["x"].abs().max()
    return batch


class List(list[Any]):
    """A list that looks at its first tensor when it is made."""

    def __init__(self, parts: Any) -> None:
        super().__init__(parts)
        self.level = self[0].abs().max()


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


class Levelled(Pair):
    """A tuple that looks at its first tensor when it is made."""

    def __new__(cls, x: Tensor, y: Tensor) -> "Levelled":
        made = super().__new__(cls, x, y)
        if isinstance(x, Tensor):
            made.level = x.abs().max()
        return made


class Mapped(collections.UserDict[str, Tensor]):
    """A mapping that looks at what is put into it."""

    def __setitem__(self, key: str, value: Tensor) -> None:
        super().__setitem__(key, value)
        if key == "x":
            self.level = value.abs().max()


def by_level(model: nn.Module, batch: Any) -> Tensor:
    x, y = (batch["x"], batch["y"]) if isinstance(batch, Mapped | Slots) else batch
    level = 1.0 if isinstance(batch, Slots) and batch.level is None else batch.level
    return 0.01 * F.cross_entropy(model(x) * level, y, reduction="none")


for _name, _collate, _weight, _rest in (
    ("random-flip", flipped, 0.01, {}),
    ("random-neighbours", neighbours, 3.0, {}),
    ("centred", centred, 1.0, {}),
    ("many", many, 1e-3, {"dataset": lambda: items(300), "who": 299}),
    ("rare", rare, 1e-3, {"dataset": lambda: items(300, at=298), "who": 298}),
    ("random-and-rare", random_and_rare, 1e-3, {"dataset": lambda: items(300, at=298), "who": 298}),
    (
        "random-draws",
        random_draws,
        1e-3,
        {"dataset": lambda: items(300, at=298), "who": 298},
    ),
):
    _dataset = _rest.pop("dataset", items)
    attack(
        f"collate-{_name}",
        zero,
        ce(_weight),
        _dataset,
        options={"collate_fn": _collate},
        engines=("auto", "loop"),
        **_rest,
    )
attack(
    "collate-rounding",
    through(lambda m, x: m.layer(x[:, :D]) * (x[:, D:] - 1.7e9) / 128),
    ce(0.01),
    items,
    options={"collate_fn": rounded},
)


def test_what_a_collate_fn_keeps_of_the_first_batch_is_refused():
    case = Attack(zero, ce(), items, options={"collate_fn": Standardised()})
    with pytest.raises(UnsupportedError, match=r"collate_fn changes 'collate_fn\.level'.*Remove the update"):
        released(case, "auto", range(N))


@pytest.mark.parametrize(
    ("dataset", "collate"),
    [(items(300, at=298), rare), (items(300, at=298), random_and_rare)],
)
def test_a_collate_fn_that_mixes_in_a_worker_process_is_refused_before_a_release(dataset, collate):
    model = zero()
    run = adamas.make_private(
        model,
        rules.SGD(model.parameters(), lr=0.1),
        dataset,
        ce(),
        **{"batch_size": 300, "steps": 3, "noise_multiplier": 1.0, "delta": 1e-6, "accountant": "rdp"},
        collate_fn=collate,
        num_workers=1,
        seed=0,
    )
    with pytest.raises(UnsupportedError, match="collate_fn mixes"):
        next(iter(run))
    assert not run.ledger.entries


def test_worker_processes_ask_a_data_set_for_one_example_at_a_time():
    dataset, model = AtOnce(*outlier().tensors), zero()
    run = adamas.make_private(
        model,
        rules.SGD(model.parameters(), lr=0.1),
        dataset,
        ce(),
        **{"batch_size": N, "steps": 1, "noise_multiplier": 1.0, "delta": 1e-6, "accountant": "rdp"},
        num_workers=1,
        seed=0,
    )
    ((data, _),) = next(iter(run.batches()))
    assert torch.equal(data[0], dataset.x)


attack(
    "collate-timestamps",
    through(lambda m, x: m.layer(x[:, :D])),
    ce(0.01),
    items,
    options={"collate_fn": beside_timestamps},
    engines=EVERY,
)
attack(
    "collate-global",
    zero,
    times(lambda x: KEPT["level"]),
    items,
    options={"collate_fn": left_behind},
    engines=EVERY,
)
for _name, _kind in (
    ("list", lambda examples: List(stacked(examples))),
    ("tuple", lambda examples: Levelled(*stacked(examples))),
    ("mapping", lambda examples: Mapped(zip("xy", stacked(examples), strict=True))),
    ("slots", in_slots),
):
    attack(f"batch-{_name}", zero, by_level, items, options={"collate_fn": _kind})


class Texts(Dataset[Any]):
    """Texts of given lengths."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: int) -> Any:
        return torch.full((self.lengths[i],), 1 + i % 3), torch.tensor(0)


def joined_texts(examples: list[Any]) -> Any:
    texts = nn.utils.rnn.pad_sequence([text for text, _ in examples], batch_first=True)
    return texts, torch.stack([label for _, label in examples])


def augmented_texts(examples: list[Any]) -> Any:
    texts, labels = joined_texts(examples)
    return texts.masked_fill((torch.rand(texts.shape) < 0.2) & (texts > 0), 4), labels


def padded_by_the_largest(examples: list[Any]) -> Any:
    """Pads to one side or to the other, by a value of the batch."""
    left = max(int(text.max()) for text, _ in examples) > 2
    side = "left" if left else "right"
    texts = nn.utils.rnn.pad_sequence([t for t, _ in examples], batch_first=True, padding_side=side)
    return texts, torch.stack([label for _, label in examples])


class First(nn.Module):
    """The first token, or the last ones if a text is very long."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(5, D, padding_idx=0), nn.Linear(D, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.table(tokens)
        return self.last(h[:, 0] if tokens.shape[1] < 100 else h.mean(1))


attack(
    "padded-side",
    First,
    ce(3.0),
    Texts([5] * 2 + [9] + [5] * 9),
    who=2,
    options={"collate_fn": padded_by_the_largest},
    engines=EVERY,
)
attack(
    "padded-from-some-length-on",
    First,
    ce(0.5),
    Texts([5] * 10 + [9] + [5] * 7 + [200] + [5] * 11),
    who=18,
    options={"collate_fn": joined_texts},
    engines=EVERY,
)


class Pooled(nn.Module):
    """The mean of the tokens, with the padding."""

    def __init__(self, last: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(5, D, padding_idx=0), last()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(self.table(tokens).mean(1))


for _name, _lengths, _who, _last, _collate in (
    ("spread", [5] * (N - 1) + [200], N - 1, lambda: nn.Linear(D, 2), joined_texts),
    ("rare", [5] * 18 + [200] + [5] * 11, 18, lambda: nn.Linear(D, 2), joined_texts),
    ("zero-head", [5] * (N - 1) + [200], N - 1, zero, joined_texts),
    ("augmented", [5] * (N - 1) + [200], N - 1, lambda: nn.Linear(D, 2), augmented_texts),
):
    attack(
        f"padded-{_name}",
        functools.partial(Pooled, _last),
        ce(0.5),
        Texts(_lengths),
        who=_who,
        options={"collate_fn": _collate},
        engines=EVERY,
    )

# --- numbers ----------------------------------------------------------------------------------------------


class Frames(nn.Module):
    """The difference of two frames behind a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return (h[:, 0] - h[:, 1]).flatten(1)


def shifted(by: float, *size: int) -> TensorDataset:
    x, y = gaussian(N, *size).tensors
    x[-1] += by
    return TensorDataset(x, y)


def some(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch[0])
    return 1e-4 * out.square().sum(1) + out[:, :8].sum(1)


for _by in (1e7,):
    attack(
        f"frames-{_by:.0e}",
        Frames,
        some,
        shifted(_by, 2, 2, 6, 6),
    )
for _by in (1e5, 1e7):
    attack(
        f"times-{_by:.0e}",
        through(lambda m, x: m.layer(x)[:, 0] - m.layer(x)[:, 1]),
        ce(),
        shifted(_by, 2, D),
    )


def subnormal(model: nn.Module, batch: Any) -> Tensor:
    return 1e-20 * model(batch[0]).sum(1)


def huge() -> TensorDataset:
    x = torch.zeros(64, 4096)
    x[-1] = 2.8e38
    return TensorDataset(x, torch.zeros(64))


attack(
    "subnormal",
    lambda: zero(4096, 64),
    subnormal,
    huge,
    who=63,
)


class Almost(nn.Module):
    """A derived weight that is the parameter, but for one column."""

    def __init__(self, width: int, factor: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, width))
        self.register_buffer("factors", torch.ones(width).index_fill_(0, torch.tensor([7]), factor))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.factors)


def one_column(width: int) -> TensorDataset:
    x = torch.zeros(N, width)
    x[-1, 7] = 100.0
    return TensorDataset(x, torch.zeros(N))


attack(
    "row-map",
    functools.partial(Almost, 100_000, 1.001),
    lambda model, batch: model(batch[0]).sum(1),
    functools.partial(one_column, 100_000),
)
for _rule in ("AdaClip", "MacAdam"):
    attack(
        f"centre-{_rule}",
        lambda: nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, 2)),
        ce(5.0),
        gaussian(64),
        who=63,
        rule=getattr(rules, _rule),
        warm=2,
    )
for _kind in (torch.bfloat16, torch.float16):
    attack(
        f"narrow-{_kind}",
        lambda kind=_kind: nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, 2)).to(kind),
        lambda model, batch, kind=_kind: (
            100 * F.cross_entropy(model(batch[0].to(kind)).float(), batch[1], reduction="none")
        ),
        gaussian(),
    )
for _name, _value in (("nan", math.nan), ("inf", math.inf), ("largest", 3e38)):
    attack(
        f"value-{_name}", lambda: nn.Linear(D, 2), ce(), functools.partial(outlier, big=_value), engines=EVERY
    )

# --- what the backward of a custom function finds ---------------------------------------------------------


class Saved(torch.autograd.Function):
    """Saves what it returns, and scales gradients by its largest number in the batch."""

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
    """The same, with a copy of the batch that the forward made unseen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.level = torch.Tensor(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.level.abs().max()


class Between(nn.Module):
    """Two layers with a function between them, from some call on."""

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

# --- what is sound ----------------------------------------------------------------------------------------


class Reversed(torch.autograd.Function):
    """Gradient reversal."""

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
    attack(f"sound-{_name}", _model, squared, reached, engines=EVERY)
attack(
    "sound-distilled",
    through(distilled, teacher=lambda: nn.Linear(D, 2).requires_grad_(False)),
    ce(10.0),
    gaussian(),
    engines=EVERY,
)


@pytest.mark.parametrize(("case", "engine"), CASES)
def test_an_attack_is_refused_or_moves_the_sum_by_at_most_1(case, engine, monkeypatch):
    if case.cache is not None:
        monkeypatch.setattr(Materialized, "cache_bytes", case.cache)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            moved = influence(case, engine)
        except UnsupportedError:
            return
    assert moved <= LIMIT


# --- what leaves without noise ----------------------------------------------------------------------------

SEEN: list[Tensor] = []


class Watched(nn.Module):
    """A model with hooks that log its gradients."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = zero()
        SEEN.clear()
        for p in self.parameters():
            if kind == "hook":
                p.register_hook(lambda g: SEEN.append(g.clone()))
            else:
                p.register_post_accumulate_grad_hook(lambda p: SEEN.append(p.grad.clone()))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@pytest.mark.parametrize("kind", ["hook", "post-hook"])
@pytest.mark.parametrize(
    "engine",
    [
        "auto",
        "bookkeeping",
        "vmap",
        "loop",
    ],
)
def test_hooks_of_parameters_see_no_gradient_without_noise(kind, engine):
    case = Attack(lambda: Watched(kind), ce(), outlier())
    try:
        released(case, engine, range(N))
    except UnsupportedError:
        return
    assert not SEEN


@pytest.mark.parametrize("engine", EVERY)
def test_no_gradient_is_left_on_the_model(engine):
    models = []
    case = Attack(lambda: models.append(zero()) or models[-1], ce(), outlier())
    released(case, engine, range(N))
    assert all(p.grad is None for p in models[-1].parameters())
