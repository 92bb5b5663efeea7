"""Attacks that read the number of examples in a batch."""

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.attacks import Attacks, N, assert_harmless, ce, gaussian, outlier, times, zero

CASES = Attacks()
attack = CASES.add

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

# These read the number right before a function gets the same number as a size.
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
    """Uses the first token of a sequence; for a single example, `squeeze` also removes the batch axis."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = x.squeeze()
        first = self.layer(z[:, 0])
        return first if z.dim() == 3 else first.unsqueeze(0)


attack("batch-of-one-squeezed", Squeezed, ce(10.0), gaussian(N, 1, 8, 8), sets=([0, 1], [0]), warm=1)


@pytest.mark.parametrize(("case", "engine"), CASES)
def test_an_attack_is_refused_or_moves_the_sum_by_at_most_1(case, engine, monkeypatch):
    assert_harmless(case, engine, monkeypatch)
