"""Results of held-out trials, as numbers: `docs/learning_rates.md` explains them.

The tests compute each of them again from the stored results of `experiments/rates/trials` and
`experiments/adamw/table1-trials`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adamas.suggestions.noise import RunNoise

EPOCHS_TRIED = (1, 3)
"""The fewest and the most epochs of a trial."""

STEPS_TRIED = (11, 687)
"""The fewest and the most steps of a trial."""

LARGEST_MEAN_NOISE = 0.33
"""The largest noise norm of the mean of all releases of a trial, in clip norms."""


@dataclass(frozen=True)
class Evidence:
    """A rule in the trials.

    Attributes:
        rule: Its name in `adamas.rules.RULES`.
        scale: The constant c of its learning rate.
        largest: The largest learning rate that is suggested.
        walk: Whether the rate is c/((z/B) sqrt(T)), for T steps, which fixes how far the noise moves a
            coordinate; otherwise it is c/T.
        lost: Points of accuracy that this rate is behind the best rate of each setting; mean over tasks.
        constant: The constant rate with the least loss.
        constant_lost: Its loss.
        behind: Points that the rule at this rate is behind the best of all rules and rates.
        state_bytes: Bytes of state per parameter in float32.
        options: Arguments of the rule that differ from their defaults.
    """

    rule: str
    scale: float
    largest: float
    walk: bool
    lost: float
    constant: float
    constant_lost: float
    behind: float
    state_bytes: float
    options: Mapping[str, Any] = field(default_factory=dict)

    def rate(self, noise: RunNoise) -> float:
        """Returns the learning rate for a run."""
        steps = noise.ratio * noise.steps**0.5 if self.walk else noise.steps
        return min(self.scale / steps, self.largest)

    def formula(self, noise: RunNoise) -> str:
        """Returns the formula of the rate with its numbers."""
        if self.walk:
            text = f"{self.scale:g}/(z/B sqrt(T)) with z/B = {noise.ratio:.3g} and T = {noise.steps} steps"
        else:
            text = f"{self.scale:g}/T for T = {noise.steps} steps"
        return f"{text}, at most {self.largest:g}"


_MOMENTUM = {"momentum": 0.9}

RULES: Mapping[str, Evidence] = {
    "adam-bc": Evidence("adam-bc", 1.25, 0.03, False, 0.6, 0.01, 2.6, 1.9, 8.0),
    "sgd with momentum 0.9": Evidence("sgd", 0.016, 3.0, True, 0.8, 0.3, 2.5, 1.9, 4.0, _MOMENTUM),
    "sgd": Evidence("sgd", 0.063, 10.0, True, 1.3, 3.0, 2.9, 2.9, 0.0),
}
"""The rules that are suggested, in the order in which they are tried to fit the memory."""
