"""The parameters of an optimizer by name, and their moments."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from adamas.rules.base import Moments, Rule

Names = Mapping[Tensor, str] | nn.Module
"""Names of parameters: a model, or a name for each parameter."""


def named_parameters(
    rule: torch.optim.Optimizer, names: Names
) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """Yields the name, tensor and group of each trainable parameter of the rule."""
    if isinstance(names, nn.Module):
        names = {p: name for name, p in names.named_parameters()}
    for group in rule.param_groups:
        for p in group["params"]:
            if not p.requires_grad:
                continue
            if p not in names:
                raise ValueError(
                    f"Expected a name for each parameter of the rule, found none for one of shape "
                    f"{tuple(p.shape)}. Pass the model that the rule was made for."
                )
            yield names[p], p, group


def moments_of(rule: torch.optim.Optimizer, p: Tensor) -> Moments | None:
    """Returns the moments of a parameter; None if the optimizer keeps none."""
    return rule.moments(p) if isinstance(rule, Rule) else None
