"""How far one example moves a release, also one that is not a number, and what no example leaves."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from adamas._nests import map_tensors
from adamas._replay import Silent, joined, release_of, run_geometry, whitened_sums
from adamas.check.base import FAIL, PASS, STEPS, Outcome, Replay, recorded_events
from adamas.engines import Loss
from adamas.loading import Loader
from adamas.run import PrivateRun

_AMPLIFIED = 1e4  # makes nearly every gradient one that must be clipped


def sensitivity(replay: Replay) -> Outcome:
    """Removes each of some examples from a batch, in the first geometry and in a later one."""
    run = replay.fresh(budget=False)
    indices, noise, loss = replay.places(), run.noise, run.loss
    limit, most, trained = 1.0, 0.0, 0
    for stage in range(2):
        if stage:
            trained = sum(1 for _ in islice(run, STEPS))
        limit = max(limit, 1 + _rounding(run))
        run.noise = Silent(noise.seed)
        for factor in (1.0, _AMPLIFIED):
            run.loss = _times(loss, factor)
            for moved in _moves(run, indices, replay.random):
                most = max(most, moved) if math.isfinite(moved) else math.inf
        run.noise, run.loss = noise, loss
    removed = "given no weight" if replay.random else "removed"
    seen = (
        f"{len(indices)} examples {removed} one by one, at the start and after {trained} steps, also with "
        f"losses times {_AMPLIFIED:g}: the whitened sum moved by at most {most:.6f}"
    )
    return (PASS if most <= limit else FAIL), seen


def empty_batch(replay: Replay) -> Outcome:
    """Releases an empty batch, and steps on it."""
    run = replay.fresh(budget=False)
    geometry = run_geometry(run)
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
    """Makes one example of a batch not a number, in its inputs or, where they are whole, in its loss."""
    run = replay.door
    indices, step = replay.places(), run.steps_done
    noise, loader, loss = run.noise, run.loader, run.loss
    run.noise = Silent(noise.seed)
    moved = []
    try:
        without = _sum(run, indices, step, padding=1)
        for value in (math.nan, math.inf):
            poisoned = _Poisoned(loader, value)
            run.loader, run.loss = poisoned.loader(), _with_factors(loss)
            changed = _sum(run, indices, step)
            run.loader, run.loss = loader, loss
            if not changed.isfinite().all():
                return FAIL, f"an example with the value {value} makes the release not finite"
            moved.append(float((changed - without).norm()))
    finally:
        run.noise, run.loader, run.loss = noise, loader, loss
    where = "inputs" if poisoned.reached else "losses"
    seen = f"NaN and infinite {where} of one example: the release is finite, and moved by {max(moved):.6f}"
    return (PASS if max(moved) <= 1 + _rounding(run) else FAIL), seen


def _moves(run: PrivateRun, indices: list[int], random: bool) -> Iterator[float]:
    """How far each example moves the whitened sum of a batch."""
    step = run.steps_done
    for i in indices:
        others = [j for j in indices if j != i]
        present = _sum(run, [*others, i], step)
        # Without its row dropout would draw other masks for the others, which is no influence of its data.
        absent = _sum(run, [*others, i], step, padding=1) if random else _sum(run, others, step)
        yield float((present - absent).norm())


def _sum(run: PrivateRun, indices: Sequence[int], step: int, padding: int = 0) -> Tensor:
    release = release_of(run, indices, step, padding)
    return joined(whitened_sums(run, release, run_geometry(run)))


def _rounding(run: PrivateRun) -> float:
    """What rounding may add to a sensitivity of 1, in the model's number types."""
    geometry = run_geometry(run)
    centre = math.sqrt(math.fsum(geometry.center_square(p) for p in geometry.center or {}))
    coarsest = max(torch.finfo(p.dtype).eps for p in geometry.scale)
    return float(min(0.1, 1e3 * coarsest) + 1e-7 * run.loader.sampler.batch_size * centre)


def _times(loss: Loss, factor: float) -> Loss:
    return lambda model, batch: loss(model, batch) * factor


def _with_factors(loss: Loss) -> Loss:
    return lambda model, batch: loss(model, batch[0]) * batch[1]


class _Poisoned:
    """A loader that spoils the numbers of the last example of a batch, or has a factor to spoil its loss."""

    def __init__(self, loader: Loader, value: float) -> None:
        self._loader, self._value = loader, value
        self.reached = False

    def loader(self) -> Loader:
        old = self._loader
        return Loader(old.dataset, old.sampler, collate_fn=self._collate, device=old.device)

    def _collate(self, examples: list[Any]) -> Any:
        data = map_tensors(self._spoil, (self._loader.collate_fn or default_collate)(examples))
        factors = torch.ones(len(examples))
        factors[-1] = 1.0 if self.reached else self._value
        return data, factors

    def _spoil(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        self.reached = True
        x = x.clone()
        x[-1] = self._value
        return x


def _finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(x.isfinite().all()) for x in tensors)
