"""Checks around the step of the optimizer: what it steps on, and what it moves."""

import torch
from torch import Tensor, nn

from adamas._numerics.digest import KeyedDigest
from adamas._streams import Seed
from adamas.privatize import PrivateGradient


class Written:
    """A release in the gradients of the parameters.

    Args:
        release: The release.
        rule: The optimizer whose gradients it becomes.
    """

    def __init__(self, release: PrivateGradient, rule: torch.optim.Optimizer) -> None:
        release.write_to(rule)
        self._gradients = [(p, p.grad, _version(p.grad)) for p in _parameters_of(rule)]

    def check(self) -> None:
        """Raises if a gradient was exchanged or changed."""
        if any(p.grad is not grad or _version(grad) != version for p, grad, version in self._gradients):
            raise RuntimeError(
                "The gradients are not those of the release any more: a hook changed them or called "
                "backward(), so they may not be private. Read them in on_before_optimizer_step, but "
                "leave them as they are."
            )


class Movement:
    """The parameters of a module before its first step, to see which ones it moves.

    Args:
        module: The module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before = _digests(module)

    def check(self, *, moves: bool) -> None:
        """Raises if a frozen parameter moved, or if none of the others did.

        Args:
            moves: Whether the step must move something: not while the learning rate is 0.
        """
        now = _digests(self._module)
        moved = {name for name, digest in now.items() if digest != self._before.get(name)}
        trained = {name for name, p in self._module.named_parameters() if p.requires_grad}
        if moved - trained:
            raise RuntimeError(
                f"The first step moved {sorted(moved - trained)[0]!r}, which requires no gradient: something "
                "else than the private gradient changes the module."
            )
        if moves and not moved:
            raise RuntimeError(
                "The first step moved no parameter: the module does not train. Check that "
                "configure_optimizers builds the rule from the parameters of this module, and its "
                "learning rate."
            )


def _parameters_of(rule: torch.optim.Optimizer) -> list[Tensor]:
    """Returns the parameters that an optimizer updates."""
    return [p for group in rule.param_groups for p in group["params"] if p.requires_grad]


def _digests(module: nn.Module) -> dict[str, bytes]:
    digest = KeyedDigest(Seed(0))
    return {name: digest([p.detach()]) for name, p in module.named_parameters()}


def _version(grad: Tensor | None) -> int:
    return -1 if grad is None else grad._version
