"""Checks that the optimizer steps on the release."""

import torch
from torch import Tensor

from adamas.privatize import PrivateGradient


class Written:
    """A release that was written into the gradients of the parameters.

    Args:
        release: The release.
        rule: The optimizer whose gradients it becomes.
    """

    def __init__(self, release: PrivateGradient, rule: torch.optim.Optimizer) -> None:
        release.write_to(rule)
        self._gradients = [(p, p.grad, _version(p.grad)) for p in _parameters_of(rule)]

    def check(self) -> None:
        """Raises if a gradient was replaced or changed."""
        if any(p.grad is not grad or _version(grad) != version for p, grad, version in self._gradients):
            raise RuntimeError(
                "The gradients are not those of the release any more: a hook changed them or called "
                "backward(), so they may not be private. Read them in on_before_optimizer_step, but "
                "leave them as they are."
            )


def _parameters_of(rule: torch.optim.Optimizer) -> list[Tensor]:
    """Returns the parameters that an optimizer updates."""
    return [p for group in rule.param_groups for p in group["params"] if p.requires_grad]


def _version(grad: Tensor | None) -> int:
    return -1 if grad is None else grad._version
