"""Make private runs without noise, and measure the influence of one record.

The promise: a record moves the whitened sum by at most 1. The sampling rate is 1, so that the sums with and
without a record can be compared.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import adamas
from adamas import rules
from adamas.check.replay import Silent, joined, release_of, whitened_sums
from adamas.run.loop import PrivateRun

N = 24
LIMIT = 1 + 1e-5  # allows for the rounding of float32
Forward = Callable[[Any, Tensor], Tensor]


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def data(*size: int, classes: int = 3, n: int = N, seed: int = 0) -> TensorDataset:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *size, generator=draw)
    return TensorDataset(x, torch.randint(0, classes, (n,), generator=draw))


def layers() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"first": nn.Linear(5, 8), "second": nn.Linear(8, 3)}


def made(model: nn.Module, dataset: Dataset[Any], loss: Any = cross_entropy, **options: Any) -> PrivateRun:
    options = {"noise_multiplier": 1.0, "clip_norm": 0.05, "engine": "bookkeeping", "steps": 9} | options
    run = adamas.make_private(
        model,
        rules.SGD(model.parameters(), lr=0.1),
        dataset,
        loss,
        batch_size=len(dataset),  # type: ignore[arg-type]
        delta=1e-9,
        accountant="rdp",
        seed=0,
        progress=False,
        **options,
    )
    return run._replaced(noise=Silent(run.noise.seed))


def influence(run: PrivateRun, record: int) -> float:
    """Returns how far a record moves the whitened sum of all records."""
    geometry = run.geometry()
    rest = [i for i in range(N) if i != record]
    sums = [
        joined(whitened_sums(run, release_of(run, rows, run.steps_done), geometry))
        for rows in ([*rest, record], rest)
    ]
    return float((sums[0] - sums[1]).norm())
