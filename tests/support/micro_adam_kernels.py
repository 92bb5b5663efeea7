"""Step MicroAdam with its compiled kernel or with torch, and compare the two."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adamas import PrivateGradient, rules
from adamas.rules import _micro_adam_kernel as kernel
from adamas.rules import micro_adam

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="Numba is missing")


@contextmanager
def steps_by(compiled: bool) -> Iterator[list[int]]:
    """Makes steps use the kernel or torch; yields the sizes of the tensors that the kernel stepped."""
    seen: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        if compiled:
            original = kernel.step

            def noted(theta: Tensor, *args: Any, **kwargs: Any) -> Any:
                seen.append(theta.numel())
                return original(theta, *args, **kwargs)

            patch.setattr(kernel, "step", noted)
        else:
            patch.setattr(micro_adam, "_kernel", lambda: None)
        yield seen


def step(rule: rules.MicroAdam, gradients: list[Tensor]) -> None:
    params = rule.trainable()
    release = {p: g.reshape(p.shape) for p, g in zip(params, gradients, strict=True)}
    PrivateGradient(release, dict.fromkeys(params, 0.1)).write_to(rule)
    rule.step()


def rule_for(sizes: list[int], seed: int = 0, **options: Any) -> rules.MicroAdam:
    generator = torch.Generator().manual_seed(seed)
    params = [nn.Parameter(torch.randn(size, generator=generator)) for size in sizes]
    return rules.MicroAdam(params, **{"lr": 0.1, **options})


def assert_same(one: rules.MicroAdam, other: rules.MicroAdam, what: object = "") -> None:
    """Compares parameters and states bit for bit; any NaN equals any other."""
    for p, twin in zip(one.trainable(), other.trainable(), strict=True):
        pairs = {name: (value, other.state[twin][name]) for name, value in one.state[p].items()}
        for name, (a, b) in {"theta": (p, twin), **pairs}.items():
            if isinstance(a, Tensor):
                assert a.dtype == b.dtype
                a, b = a.detach().double(), b.detach().double()
                assert torch.equal(a.isnan(), b.isnan()), (name, what)
                assert torch.equal(a.nan_to_num(0.0), b.nan_to_num(0.0)), (name, what)
                assert torch.equal(a.nan_to_num(0.0).signbit(), b.nan_to_num(0.0).signbit()), (name, what)
            else:
                assert a == b, (name, what)
