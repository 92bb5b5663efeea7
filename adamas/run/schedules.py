"""Learning-rate schedules by name."""

import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from adamas.run.options import SchedulerFactory

SCHEDULES: dict[str, Callable[[float], float] | None] = {
    "constant": None,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}
"""Learning-rate schedules by name: the factor of the rate after a share of the steps."""


def scheduler_of(name: str) -> SchedulerFactory | None:
    """Returns a function that makes the scheduler from rule and steps; None for "constant"."""
    shape = SCHEDULES[name]
    if shape is None:
        return None

    def made(rule: Optimizer, steps: int) -> LambdaLR:
        return LambdaLR(rule, lambda step: shape(step / steps))

    return made
