"""Checks after a step that the trainable weights moved, and the frozen ones did not.

A training whose weights do not move spends its budget all the same. That happens if adapters are attached
after the optimizer was made, or before a model was moved to its device.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from adamas.distributed import fingerprint


class Movement:
    """The weights of a model before a step.

    Args:
        model: The model.
        noisy: Whether the step has noise, so that every gradient is different from 0.
    """

    def __init__(self, model: nn.Module, *, noisy: bool) -> None:
        self._model, self._noisy = model, noisy
        self._trainable = {
            name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad
        }
        self._frozen = _digests(model)

    def check(self) -> None:
        """Raises unless exactly the trainable weights have moved since.

        Weights in 16 bits may stay where a step rounds to nothing, but not all of them. Without noise a gradient
        may be 0, but not all of them.
        """
        now = dict(self._model.named_parameters())
        still = [name for name, p in self._trainable.items() if torch.equal(now[name], p)]
        wrong = [
            name for name in still if self._noisy and now[name].dtype in (torch.float32, torch.float64)
        ]
        if wrong or len(still) == len(self._trainable):
            raise RuntimeError(
                f"The first step moved {len(self._trainable) - len(still)} of {len(self._trainable)} trainable "
                f"parameters; {(wrong or still)[0]!r} did not move. Training on would spend the budget for "
                "nothing. Move the model to its device before adapters are added, build the rule from "
                "the parameters that the model has now, and raise learning_rate if steps round to nothing."
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
    frozen: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    return {name: fingerprint([p]) for name, p in frozen.items()}
