"""Computes the noise of a run, relative to its gradients, from sizes and budget alone."""

import functools
import math
from dataclasses import dataclass

from adamas.accounting import calibrate


@dataclass(frozen=True)
class RunNoise:
    """The noise of a run, in clip norms.

    A clipped gradient has norm 1 at most, and so has the mean of a batch. With a noise norm above 1, one
    release is mostly noise. Averaging n releases divides the noise norm by the square root of n.

    Attributes:
        batch_size: Expected examples of a batch.
        steps: Releases of the run.
        multiplier: The noise multiplier, z.

    Example:
        >>> noise = RunNoise(batch_size=100, steps=400, multiplier=2.0)
        >>> noise.ratio, noise.of_step(10_000), noise.of_mean(10_000)
        (0.02, 2.0, 0.1)
    """

    batch_size: int
    steps: int
    multiplier: float

    @property
    def ratio(self) -> float:
        """Returns the noise-to-batch ratio z/B: the deviation of a coordinate of a release."""
        return self.multiplier / self.batch_size

    def of_step(self, parameters: int) -> float:
        """Returns the typical norm of the noise of one release."""
        return math.sqrt(parameters) * self.ratio

    def of_mean(self, parameters: int) -> float:
        """Returns the typical norm of the noise of the mean of all releases."""
        return self.of_step(parameters) / math.sqrt(self.steps)


@functools.lru_cache(maxsize=4096)
def noise_of(
    n: int, batch_size: int, epochs: int, epsilon: float, delta: float, accountant: str = "pld"
) -> RunNoise:
    """Calibrates the noise of a run of whole passes to its budget.

    Args:
        n: Number of examples.
        batch_size: Expected examples of a batch.
        epochs: Passes over the data.
        epsilon: The budget.
        delta: The delta of the budget.
        accountant: A name in `ACCOUNTANTS`.
    """
    steps = epochs * -(-n // batch_size)
    z = calibrate.noise_multiplier(
        epsilon=epsilon,
        delta=delta,
        sampling_rate=batch_size / n,
        steps=steps,
        accountant=accountant,
    )
    return RunNoise(batch_size, steps, z)
