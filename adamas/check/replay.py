"""Replays the door of a run on chosen examples, for `adamas.check` and `adamas.audit`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adamas._streams import global_randomness
from adamas.geometry import Geometry
from adamas.loading import Batch
from adamas.noise import GaussianNoise, Noise
from adamas.privatize import PrivateGradient
from adamas.run.loop import PrivateRun
from adamas.sampling import Draw
from adamas.secure_noise import GRID, SecureNoise

MakeRun = Callable[[], PrivateRun]
"""The user's function, which returns a fresh run at each call."""


class Silent(GaussianNoise):
    """Noise that is 0, so that a release shows the clipped sum. For replays, which release nothing."""

    def add_normal_(
        self, out: Tensor, std: float = 1.0, key: tuple[int, ...] = (), *, scales: object = None
    ) -> Tensor:
        """Adds nothing."""
        return out

    def skip(self) -> None:
        """Counts nothing: no rank draws."""


class SilentSecure(SecureNoise):
    """Secure noise that is 0: the sum is rounded to the grid, around the center, as a release is."""

    def _rounded(self, offset: np.ndarray, place: tuple[int, ...]) -> np.ndarray:
        rounded: np.ndarray = np.rint(offset)
        return rounded

    def skip(self) -> None:
        """See `Silent.skip`."""

    def _next_draw(self) -> int:
        return self.draws


def silenced(noise: Noise) -> Noise:
    """Returns noise of the same kind that is 0."""
    return SilentSecure(noise.seed) if isinstance(noise, SecureNoise) else Silent(noise.seed)


def grid_step(run: PrivateRun) -> float:
    """Returns the width of the grid to which a release is rounded, in units of the sensitivity."""
    return GRID * run.noise_multiplier if isinstance(run.noise, SecureNoise) else 0.0


def fresh_run(make_run: MakeRun) -> PrivateRun:
    """Calls the user's function, and returns a rehearsal of its run, which must have released nothing."""
    run = make_run()
    if not isinstance(run, PrivateRun):
        raise TypeError(
            f"Expected make_run() to return what adamas.make_private returns, got {type(run).__name__}."
        )
    if run.steps_done or run.ledger.entries:
        raise ValueError(
            "Expected make_run() to return a fresh run at each call, got one that has released something. "
            "Make model, rule and run inside the function."
        )
    return run._replaced()


def release_of(run: PrivateRun, indices: Sequence[int], step: int, padding: int = 0) -> PrivateGradient:
    """Releases these examples by the run's own door; the last `padding` of them have no weight."""
    draw, loader = Draw(np.asarray(indices, dtype=np.int64), padding), run.loader
    if loader.world_size > 1:
        draw = draw.dealt(loader.rank, loader.world_size)
    return run.privatize(Batch(step, draw, loader, None))


def whitened_sums(run: PrivateRun, release: PrivateGradient, geometry: Geometry) -> dict[Tensor, Tensor]:
    """Returns `B (g~ - c)/s`, the noisy clipped sum behind a release, flat and in float64."""
    batch_size = run.loader.sampler.batch_size
    sums = {}
    for p, mean in release.mean.items():
        c, s = geometry.center_of(p), geometry.scale[p]
        shifted = mean.double() if c is None else mean.double() - _double(c)
        sums[p] = (shifted / _double(s) * batch_size).reshape(-1)
    return sums


def joined(sums: dict[Tensor, Tensor]) -> Tensor:
    """Joins the sums of all parameters into one vector."""
    return torch.cat([value.cpu() for value in sums.values()])


def examples_of(run: PrivateRun, indices: Sequence[int], *, state: int = 0) -> Any:
    """Loads these examples as a batch of the run, with the global generators in a given `state`."""
    rows = np.asarray(indices, dtype=np.int64)
    with global_randomness(state):
        return run.loader.check(run.loader.fetch(rows), rows)


def _double(value: Tensor | float) -> Tensor | float:
    return value.double() if isinstance(value, Tensor) else value
