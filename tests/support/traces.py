"""Collect the traces that an engine might leave on a model."""

from typing import Any

from torch import nn


def hooks(model: nn.Module) -> dict[str, int]:
    """Counts the hooks of each module and parameter."""
    found = {
        f"{name}.{kind}": len(value)
        for name, module in model.named_modules()
        for kind, value in vars(module).items()
        if "hooks" in kind and isinstance(value, dict)
    }
    for name, p in model.named_parameters():
        found[name] = len(p._backward_hooks or ()) + len(p._post_accumulate_grad_hooks or ())
    return found


def traces(model: nn.Module) -> dict[str, Any]:
    """Collects everything that an engine might change on a model, except for values."""
    parameters = list(model.parameters())
    return {
        "modules": [(type(module), module.training, sorted(vars(module))) for module in model.modules()],
        "hooks": hooks(model),
        "parameter hooks": [(p._backward_hooks, p._post_accumulate_grad_hooks) for p in parameters],
        "requires_grad": [p.requires_grad for p in parameters],
        "identities": [id(p) for p in parameters] + [id(b) for b in model.buffers()],
        "versions": [p._version for p in parameters],
        "names": list(model.state_dict()),
        "attributes of parameters": [sorted(vars(p)) for p in parameters],
    }
