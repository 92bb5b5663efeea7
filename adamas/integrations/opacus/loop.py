"""The objects of one private loop, which `make_private` returns and checkpoints ask for."""

from typing import Any

import torch
from torch import nn

from adamas.integrations.opacus.criterion import PrivateCriterion
from adamas.integrations.opacus.loader import PrivateLoader
from adamas.integrations.opacus.module import PrivateModule
from adamas.integrations.opacus.optimizer import PrivateOptimizer
from adamas.integrations.opacus.training import Training


class Loop:
    """Module, optimizer and data loader of one training.

    Args:
        training: Makes the releases.
        module: The user's module.

    Attributes:
        training: As given.
    """

    def __init__(self, training: Training, module: nn.Module) -> None:
        self.training = training
        run = training.run
        self._original, self._private = module, PrivateModule(module)
        self._optimizer = PrivateOptimizer(
            run.rule,
            noise_multiplier=run.noise_multiplier,
            max_grad_norm=run.clip_norm,
            expected_batch_size=run.loader.sampler.batch_size,
        )

    def objects(self) -> tuple[PrivateModule, PrivateOptimizer, PrivateLoader]:
        """Returns module, optimizer and data loader for the user's loop."""
        return self._private, self._optimizer, PrivateLoader(self.training)

    def objects_with(
        self, criterion: Any
    ) -> tuple[PrivateModule, PrivateOptimizer, PrivateCriterion, PrivateLoader]:
        """Returns them and a criterion, in Opacus' order."""
        module, optimizer, loader = self.objects()
        return module, optimizer, PrivateCriterion(criterion), loader

    def check_mine(self, module: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """Raises for a module or an optimizer of another loop."""
        rule = self.training.run.rule
        mine = isinstance(optimizer, PrivateOptimizer) and optimizer.original_optimizer is rule
        known = module is self._private or module is self._original
        if not known or not (optimizer in (None, rule) or mine):
            raise ValueError("Expected module and optimizer to be those that make_private returned.")
