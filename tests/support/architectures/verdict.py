"""Compares an engine with plain autograd on an architecture, and prints a survey."""

import time
import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from adamas import UnsupportedError
from adamas._nests import map_tensors
from adamas.engines import ENGINES
from tests.support.architectures.registry import ARCHITECTURES, MIXED, Architecture, Batch, Loss, N
from tests.support.one_by_one import Gradients, geometries, some_weights, summed, whitened_norms


@dataclass(frozen=True)
class Verdict:
    """The result of an engine on an architecture.

    Attributes:
        outcome: "exact", "wrong", "refused" by the engine, or "failed" with any other error.
        text: Message of the refusal or failure, or the place of the largest error.
        error: Largest relative error of a norm or a sum.
        idle: Trainable parameters whose gradient is zero for every example. They test nothing.
        trainable: Number of trainable parameters.
        seconds: Times for building, for plain autograd and for the engine.
    """

    outcome: str
    text: str
    error: float
    idle: tuple[str, ...]
    trainable: int
    seconds: tuple[float, float, float]


def rows(batch: Batch, some: slice) -> Batch:
    """Selects some examples of a batch."""
    return map_tensors(lambda x: x[some], batch)


def one_by_one(model: nn.Module, loss: Loss, batch: Batch, n: int) -> Gradients:
    """Computes each example's gradient alone. Uses `backward`, as models that call it themselves need it."""
    params: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    result = []
    for i in range(n):
        for p in params:
            p.grad = None
        with torch.enable_grad():
            loss(model, rows(batch, slice(i, i + 1))).sum().backward()
        result.append({p: torch.zeros_like(p) if p.grad is None else p.grad for p in params})
    for p in params:
        p.grad = None
    return result


def judged(architecture: Architecture, n: int = N, engine: str = "bookkeeping") -> Verdict:
    """Compares an engine with plain autograd: norms in a ball and around a center, and weighted sums."""
    clock = [time.perf_counter()]
    model, loss, batch = architecture.build(n)
    clock.append(time.perf_counter())
    gradients = one_by_one(model, loss, batch, n)
    clock.append(time.perf_counter())
    ball, centered, _ = geometries(model)
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    idle = tuple(names[p] for p in gradients[0] if not any(each[p].abs().max() > 1e-12 for each in gradients))
    first = min(n - 1, 1)  # the second batch is smaller, and all of its texts have padding
    outcome, text, error = "", "", 0.0
    try:
        found = []
        for geometry, some in ((ball, slice(n)), (centered, slice(first, n))):
            weights = some_weights(n - (some.start or 0))
            norms, sums = whitened_norms(gradients[some], geometry), summed(gradients[some], weights)
            fast = ENGINES[engine](model, loss, rows(batch, some))
            found.append(("the norms", _distance(fast.norms(geometry), norms, float(norms.min()))))
            size = max(float(value.abs().max()) for value in sums.values())
            for p, value in fast.weighted_sum(weights).items():
                scale = max(float(sums[p].abs().max()), 1e-3 * size)
                found.append((f"the sum of {names[p]}", _distance(value, sums[p], scale)))
        text, error = max(found, key=lambda each: each[1])
        outcome = "exact" if error <= architecture.tolerance else "wrong"
    except UnsupportedError as refusal:
        outcome, text = "refused", str(refusal)
    except Exception as failure:
        outcome, text = "failed", f"{type(failure).__name__}: {failure}"
    clock.append(time.perf_counter())
    seconds = (clock[1] - clock[0], clock[2] - clock[1], clock[3] - clock[2])
    return Verdict(outcome, text, error, idle, len(gradients[0]), seconds)


def _distance(actual: Tensor, expected: Tensor, scale: float) -> float:
    worst = float((actual - expected).abs().max()) / scale
    return worst if worst == worst else float("inf")  # NaN is the largest error


def survey(*parts: str, n: int = N, engine: str = "bookkeeping") -> dict[str, Verdict]:
    """Prints the verdict on each architecture whose name contains one of the parts."""
    torch.set_num_threads(1)
    verdicts = {}
    for name, architecture in (ARCHITECTURES | MIXED).items():
        if parts and not any(part.lower() in name.lower() for part in parts):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                verdict = judged(architecture, n, engine)
        except pytest.skip.Exception as absent:
            print(f"{name:42} skipped  {absent}")
            continue
        except Exception as error:  # the architecture itself does not work
            verdict = Verdict("broken", f"{type(error).__name__}: {error}", 0.0, (), 0, (0.0, 0.0, 0.0))
        verdicts[name] = verdict
        took = "/".join(f"{s:.2f}" for s in verdict.seconds)
        what = f"{verdict.error:.0e}, {verdict.text}" if verdict.error else verdict.text
        idle = f" [without gradient: {', '.join(verdict.idle)}]" if verdict.idle else ""
        print(f"{name:42} {verdict.outcome:8} {took:15} {what}{idle}", flush=True)
    counts: dict[str, int] = {}
    for verdict in verdicts.values():
        counts[verdict.outcome] = counts.get(verdict.outcome, 0) + 1
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return verdicts
