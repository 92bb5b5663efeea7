"""Checks that the noise of a release has the stated variance, in every parameter."""

import math
from collections.abc import Sequence

import torch
from scipy import stats
from torch import Tensor

from adamas.check.base import FAIL, FALSE_ALARM, NOT_APPLICABLE, PASS, Outcome, Replay
from adamas.check.measures import gradients
from adamas.check.replay import examples_of, release_of, silenced, whitened_sums
from adamas.engines import trainable_parameters
from adamas.run.loop import PrivateRun

# Of noise, in all: a variance that is off by 12% is then seen in every other case.
_LEAST_VALUES = 4096
# The fewest releases, so that a tensor of a single number is tested with 64; and the most values.
_LEAST_REPEATS, _MOST_VALUES = 64, 1 << 24


def noise_variance(replay: Replay) -> Outcome:
    """Repeats releases on an empty and on a full batch, and tests the spread of the residuals."""
    run = replay.door
    if not run.private:
        return FAIL, "the run releases something without noise, and says that it is not private"
    geometry, batch_size = run.geometry(), run.loader.sampler.batch_size
    for p, stated in release_of(run, [], run.steps_done).noise_variance.items():
        spread = torch.as_tensor(geometry.scale[p]).double() * run.noise_multiplier / batch_size
        if not torch.allclose(torch.as_tensor(stated).double(), spread.square(), rtol=1e-3, atol=0.0):
            return FAIL, "the variance that a release states is not (s z/B)^2"
    p_values, ratios, count = [], [], 0
    for indices in ([], replay.few()):
        residuals = _residuals(run, indices)
        p_values += [_p_value(values) for values in residuals.values()]
        everything = torch.cat(list(residuals.values()), 1)  # (repeats, d)
        ratios.append(float(everything.square().mean()))
        p_values += [_p_value(everything), *_dependence_p_values(everything)]
        count = everything.numel()
    least = min(1.0, min(p_values) * len(p_values))
    seen = (
        f"variance {' and '.join(f'{ratio:.3f}' for ratio in ratios)} times the stated one, on an empty "
        f"batch and on {len(replay.few())} examples, {count} values each; by tensor, in all and between "
        f"releases p = {least:.2g}, where {FALSE_ALARM:g} is a false alarm's"
    )
    return (PASS if least >= FALSE_ALARM else FAIL), seen


def unused_parameters(replay: Replay) -> Outcome:
    """Looks for noise in trainable parameters that no example uses."""
    run = replay.door
    data = examples_of(run, replay.few())
    touched: set[Tensor] = set()
    for i in range(len(replay.few())):
        touched |= {p for p, g in gradients(run, data, i).items() if g.any()}
    unused = {name: p for name, p in trainable_parameters(run.model).items() if p not in touched}
    if not unused:
        return NOT_APPLICABLE, "the examples use every trainable parameter"
    if not run.private:
        return NOT_APPLICABLE, "the run is not private"
    residuals = _residuals(run, replay.few())
    p_values = {name: _p_value(residuals[p]) for name, p in unused.items()}
    worst = min(p_values, key=lambda name: p_values[name])
    if p_values[worst] * len(unused) < FALSE_ALARM:
        ratio = float(residuals[unused[worst]].square().mean())
        return FAIL, f"{worst!r} is not used, and has {ratio:.3f} times the stated variance of noise"
    return PASS, f"noise as stated in {', '.join(map(repr, unused))}"


def _residuals(run: PrivateRun, indices: Sequence[int]) -> dict[Tensor, Tensor]:
    """Returns the noise of repeated releases over its stated spread: `(repeats, numel)` by parameter."""
    geometry, step = run.geometry(), run.steps_done
    d = sum(p.numel() for p in geometry.scale)
    repeats = max(2, min(max(_LEAST_REPEATS, -(-_LEAST_VALUES // d)), _MOST_VALUES // d))
    silent = run._replaced(noise=silenced(run.noise))
    base = whitened_sums(silent, release_of(silent, indices, step), geometry)
    rows: dict[Tensor, list[Tensor]] = {p: [] for p in base}
    for _ in range(repeats):
        for p, values in whitened_sums(run, release_of(run, indices, step), geometry).items():
            rows[p].append(((values - base[p]) / run.noise_multiplier).cpu())
    return {p: torch.stack(values) for p, values in rows.items()}


def _p_value(values: Tensor) -> float:
    """Of the hypothesis that the values are standard normal, by their sum of squares, two-sided."""
    total = float(values.square().sum())
    low, high = stats.chi2.cdf(total, values.numel()), stats.chi2.sf(total, values.numel())
    return float(min(1.0, 2 * min(low, high)))


def _dependence_p_values(rows: Tensor) -> list[float]:
    """Of the hypotheses that no release repeats the noise before it, and that coordinates share none."""
    between = float((rows[1:] * rows[:-1]).sum()) / math.sqrt(rows[1:].numel())
    return [float(2 * stats.norm.sf(abs(between))), _p_value(rows.sum(1) / math.sqrt(rows.shape[1]))]
