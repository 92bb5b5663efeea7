"""Checks after a step that the trainable weights moved, and the frozen ones did not.

A training whose weights do not move still spends its budget. That happens if adapters are added after the
optimizer was made, or before the model was moved to its device.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from adamas.distributed import fingerprint


class Movement:
    """The weights of a model before a step.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._trainable = {name: p.detach().clone() for name, p in _parameters(model, trainable=True)}
        self._frozen = _digests(model)

    def check(self) -> None:
        """Raises unless trainable weights moved since, and frozen ones did not.

        Some may stay: at the small learning rate of a warm-up, the step of a weight near 1 rounds to nothing.
        """
        now = dict(self._model.named_parameters())
        if all(torch.equal(now[name], p) for name, p in self._trainable.items()):
            raise RuntimeError(
                f"The first step moved 0 of {len(self._trainable)} trainable parameters, at a learning rate "
                "above 0. To go on would spend the budget for nothing. Move the model to its device "
                "before you add adapters, build the rule from the model's current parameters, "
                "and raise the learning rate if steps round to nothing."
            )
        after = _digests(self._model)
        moved = [name for name, digest in self._frozen.items() if after.get(name) != digest]
        if moved:
            raise RuntimeError(
                f"The first step changed {moved[0]!r}, which is frozen: something besides the rule updates "
                "the model, and its release is not in the ledger. Remove it (a callback, a hook of the "
                "optimizer)."
            )


def lr_of(rule: torch.optim.Optimizer) -> float:
    """Returns the smallest learning rate of a rule's groups: 0 at the start of a warm-up."""
    return min(float(group["lr"]) for group in rule.param_groups)


def _digests(model: nn.Module) -> Mapping[str, str]:
    return {name: fingerprint([p]) for name, p in _parameters(model, trainable=False)}


def _parameters(model: nn.Module, *, trainable: bool) -> Iterator[tuple[str, Tensor]]:
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad is trainable)
