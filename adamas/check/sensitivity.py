"""Measures how far one example moves a release, even a huge one or NaN, and releases empty batches."""

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from adamas._nests import map_tensors
from adamas._streams import global_randomness
from adamas.check.base import FAIL, NOT_APPLICABLE, PASS, Outcome, Replay
from adamas.check.measures import recorded_events
from adamas.check.replay import grid_step, joined, release_of, silenced, whitened_sums
from adamas.engines import Loss
from adamas.loading import dataset_length
from adamas.run.loop import PrivateRun

_AMPLIFIED = 1e4  # makes nearly every gradient one that must be clipped
_COARSE = 1e-5  # sums of two batches of types with less than this are compared by shapes that are the same
_LEVELS = (1e4, 1e5, 1e6)  # of one example's inputs


def sensitivity(replay: Replay) -> Outcome:
    """Removes and exchanges examples of a batch, in the first geometry and in a later one."""
    batch, looked, removed = replay.batch, 0, True
    excess, most, stray = -math.inf, 0.0, 0.0
    for run in (replay.door, replay.later):
        slack = _rounding(run, len(batch.places))
        removed = not replay.random and not replay.collates_at_random and _coarsest(run) < _COARSE
        for factor in (1.0, _AMPLIFIED):
            silent = run._replaced(noise=silenced(run.noise), loss=_times(run.loss, factor))
            moves = list(replay.in_time(_moves(silent, replay, removed)))
            looked = len(moves)
            moved, others = (max(_or_infinite(values)) for values in zip(*moves, strict=True))
            most, stray = max(most, moved), max(stray, others)
            excess = max(excess, moved - 1 - slack, others - slack)
    seen = (
        f"{looked} of {len(batch.places)} examples {'removed' if removed else 'given no weight'} and "
        f"exchanged one by one, at the start and after {replay.later.steps_done} steps, also with losses "
        f"times {_AMPLIFIED:g}: the sum of the others moved by at most {stray:.6f}, the whitened sum by "
        f"at most {most:.6f}"
    )
    return (PASS if excess <= 0 else FAIL), seen


def large_example(replay: Replay) -> Outcome:
    """Multiplies one example's inputs, and adds a level that would cancel in exact arithmetic."""
    run, indices = replay.door, replay.few()
    moved: dict[str, float] = {}
    unchanged = _LastChanged(run, len(indices), 1.0, 0.0)  # the same micro-batches, and so the same masks
    without = _sum(unchanged.run, indices, padding=1)
    for factor, level in [(factor, 0.0) for factor in _LEVELS] + [(1.0, level) for level in _LEVELS]:
        changed = _LastChanged(run, len(indices), factor, level)
        value = float((_sum(changed.run, indices) - without).norm())
        moved[f"times {factor:g} plus {level:g}"] = value if math.isfinite(value) else math.inf
        if not changed.reached:
            return NOT_APPLICABLE, "the inputs are whole numbers"
    worst = max(moved, key=lambda words: moved[words])
    seen = (
        f"inputs of one example times and plus up to {_LEVELS[-1]:g}: moved by {moved[worst]:.6f} ({worst})"
    )
    return (PASS if moved[worst] <= 1 + _rounding(run, len(indices)) else FAIL), seen


def empty_batch(replay: Replay) -> Outcome:
    """Releases an empty batch, and steps on it."""
    run = replay.fresh()
    geometry = run.geometry()
    release = release_of(run, [], 0)
    if recorded_events(run) != 1:
        return FAIL, "a release on an empty batch is not recorded"
    if not _finite(release.mean.values()):
        return FAIL, "a release on an empty batch is not finite"
    if run.private and not joined(whitened_sums(run, release, geometry)).any():
        return FAIL, "a release on an empty batch has no noise"
    release.write_to(run.rule)
    run.rule.step()
    if not _finite(run.model.parameters()):
        return FAIL, "a step on noise alone leaves parameters that are not finite"
    return PASS, "noise only, finite, recorded; the rule stepped on it"


def nan_example(replay: Replay) -> Outcome:
    """Makes one example of a batch NaN or infinite: its inputs or, if they are whole numbers, its loss."""
    run, indices, moved = replay.door, replay.few(), []
    without = _sum(_LastChanged(run, len(indices), 1.0, 0.0).run, indices, padding=1)
    for value in (math.nan, math.inf):
        poisoned = _LastChanged(run, len(indices), value, 0.0)
        changed = _sum(poisoned.run, indices)
        if not changed.isfinite().all():
            return FAIL, f"an example with the value {value} makes the release not finite"
        moved.append(float((changed - without).norm()))
    where = "inputs" if poisoned.reached else "losses"
    seen = f"NaN and infinite {where} of one example: the release is finite, and moved by {max(moved):.6f}"
    return (PASS if max(moved) <= 1 + _rounding(run, len(indices)) else FAIL), seen


def _moves(run: PrivateRun, replay: Replay, removed: bool) -> Iterator[tuple[float, float]]:
    """Measures how far each chosen example moves the whitened sum of a batch, and the share of the others.

    An example that is not `removed` has weight 0: without its row dropout would draw other masks for the
    others, which is no influence of its data. With random values in collate_fn it is not exchanged either, as
    their number may depend on its length.
    """
    places = replay.batch.places
    n, known = dataset_length(run.loader.dataset), set(places)
    outside = [place for place in range(min(n, 2 * len(places) + 1)) if place not in known] or places[:1]
    for number, position in enumerate(replay.batch.chosen):
        others = [*places[:position], *places[position + 1 :]]
        mine, another = places[position], outside[number % len(outside)]
        # In front of the others it has most influence where a layer goes through the batch in its order.
        present = _sum(run, [mine, *others] if removed else [*others, mine])
        weightless = _sum(run, [*others, mine], padding=1)
        absent = _sum(run, others) if removed else weightless
        alike = [weightless]
        if not replay.collates_at_random:
            alike.append(_sum(run, [*others, another], padding=1))
        yield float((present - absent).norm()), max(float((value - absent).norm()) for value in alike)


def _sum(run: PrivateRun, indices: Sequence[int], padding: int = 0) -> Tensor:
    # One step for all, which says what random values the model draws; collate_fn may draw by others.
    with global_randomness(0):
        release = release_of(run, indices, max(0, run.steps_done - 1), padding)
    return joined(whitened_sums(run, release, run.geometry()))


def _rounding(run: PrivateRun, examples: int) -> float:
    """Returns the most that rounding adds to a sensitivity of 1, in the model's number types."""
    geometry = run.geometry()
    center = math.sqrt(math.fsum(geometry.center_square(p) for p in geometry.center or {}))
    rounded = (1e3 + 4 * examples) * _coarsest(run)
    grid = grid_step(run) * math.sqrt(sum(p.numel() for p in geometry.scale))  # of which half is each sum's
    return float(min(0.1, rounded) + 1e-7 * run.loader.sampler.batch_size * center + grid)


def _coarsest(run: PrivateRun) -> float:
    return float(max(torch.finfo(p.dtype).eps for p in run.geometry().scale))


def _or_infinite(values: Iterable[float]) -> list[float]:
    return [value if math.isfinite(value) else math.inf for value in values]


def _times(loss: Loss, factor: float) -> Loss:
    return lambda model, batch: loss(model, batch) * factor


def _with_factors(loss: Loss) -> Loss:
    return lambda model, batch: loss(model, batch[0]) * batch[1]


class _LastChanged:
    """A run without noise that changes the last example of a batch: its numbers, or if it has none, its loss.

    Args:
        run: The run.
        count: The size of the batch.
        factor: Multiplies the numbers of the last example.
        level: Is added to them.

    Attributes:
        run: The changed run.
        reached: Whether a batch had numbers to change.
    """

    def __init__(self, run: PrivateRun, count: int, factor: float, level: float) -> None:
        mine = (count - 1) % run.loader.world_size == run.loader.rank  # else another rank has the example
        self._loader = run.loader
        self._factor, self._level = (factor, level) if mine else (1.0, 0.0)
        self.reached = False
        loader = copy.copy(run.loader)
        loader.collate_fn, loader.micro_batch_size, loader.num_workers = self._collate, None, 0
        loader.compares = False  # the changed row belongs to a place, not to an example
        self.run = run._replaced(noise=silenced(run.noise), loader=loader, loss=_with_factors(run.loss))

    def _collate(self, examples: list[Any]) -> Any:
        data = map_tensors(self._spoil, (self._loader.collate_fn or default_collate)(examples))
        factors = torch.ones(len(examples))
        factors[-1] = 1.0 if self.reached else self._factor
        return data, factors

    def _spoil(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        self.reached = True
        x = x.clone()
        x[-1] = x[-1] * self._factor + self._level  # 0 times infinity is not a number either
        return x


def _finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(x.isfinite().all()) for x in tensors)
