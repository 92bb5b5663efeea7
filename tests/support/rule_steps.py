"""Make releases of known values, step rules on them, and save, load and compare rules."""

import copy
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adamas import PrivateGradient
from adamas.rules import RULES, Rule

STEPS = 50
SHAPES = [(3, 4), (5,), ()]
VARIANCES = ["zero", "constant", "by step", "by coordinate", "by step and coordinate", "changing"]


def variances_of(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> list[np.ndarray]:
    """Returns the noise variance of each step: a number, or an array with one value per coordinate."""
    by_coordinate = 0.05 + rng.random(shape)
    by_step = 0.05 + rng.random(STEPS)
    return {
        "zero": [np.float64(0)] * STEPS,
        "constant": [np.float64(0.3)] * STEPS,
        "by step": list(by_step),
        "by coordinate": [by_coordinate] * STEPS,
        "by step and coordinate": [s * (0.05 + rng.random(shape)) for s in by_step],
        # The noise is turned off, and then differs between coordinates.
        "changing": [np.float64(0.4)] * 15 + [np.float64(0)] * 15 + [by_coordinate] * 20,
    }[kind]


def as_value(variance: np.ndarray) -> Tensor | float:
    return torch.from_numpy(variance) if isinstance(variance, np.ndarray) else float(variance)


def problem(
    kind: str, seed: int = 0
) -> tuple[list[np.ndarray], list[list[np.ndarray]], list[list[np.ndarray]]]:
    """Returns starting points, and for each the private gradients and noise variances of STEPS steps."""
    rng = np.random.default_rng(seed)
    starts = [np.asarray(rng.normal(size=shape)) for shape in SHAPES]
    variances = [variances_of(kind, shape, rng) for shape in SHAPES]
    gradients = [
        [np.asarray(rng.normal(0.5, 0.3, shape) + np.sqrt(v) * rng.normal(size=shape)) for v in variance]
        for shape, variance in zip(SHAPES, variances, strict=True)
    ]
    return starts, gradients, variances


def parameters(starts: Sequence[np.ndarray], dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    return [nn.Parameter(torch.tensor(start).to(dtype)) for start in starts]


def release(
    params: Sequence[Tensor], gradients: Sequence[np.ndarray], variances: Sequence[np.ndarray]
) -> PrivateGradient:
    return PrivateGradient(
        {p: torch.tensor(g) for p, g in zip(params, gradients, strict=True)},
        {p: as_value(v) for p, v in zip(params, variances, strict=True)},
    )


def releases(params: Sequence[Tensor], kind: str = "constant", seed: int = 0) -> list[PrivateGradient]:
    """Makes the releases of `problem` for these parameters, one for each step."""
    _, gradients, variances = problem(kind, seed)
    steps = range(STEPS)
    return [release(params, [g[t] for g in gradients], [v[t] for v in variances]) for t in steps]


def step(rule: Rule, made: PrivateGradient) -> None:
    made.write_to(rule)
    rule.step()


def make_rule(name: str, params: Any, **options: Any) -> Rule:
    return RULES[name](params, **options)


def snapshot(rule: Rule) -> dict[str, Any]:
    """Copies all that a step may change: state, groups and parameters."""
    state = rule.state_dict()
    params = [p.detach().clone() for group in rule.param_groups for p in group["params"]]
    return copy.deepcopy({"state": state["state"], "groups": state["param_groups"], "params": params})


def assert_same(a: Any, b: Any) -> None:
    """Compares nested dicts and lists of tensors and numbers bit for bit."""
    assert type(a) is type(b)
    if isinstance(a, Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b


def saved_and_loaded(state: dict[str, Any]) -> dict[str, Any]:
    """Writes a state with `torch.save` and reads it back, as a checkpoint would."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
