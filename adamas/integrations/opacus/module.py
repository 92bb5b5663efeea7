"""The module of a private loop, which accepts deferred values, and plain tensors as before."""

from typing import Any

from torch import nn

from adamas._nests import named_leaves
from adamas.integrations.opacus.deferred import Deferred, DeferredLoss, recorded


class PrivateModule(nn.Module):
    """Records calls on deferred values for the private step.

    On plain tensors it computes what the module computes: evaluate it in this way. It shares the parameters,
    and offers the module's attributes. As in Opacus, the names in its `state_dict()` begin with `_module.`.

    Args:
        module: The module.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module
        self.training = module.training

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_module"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module, now on tensors, later on values of the batch."""
        values = named_leaves([list(args), kwargs])
        if any(isinstance(value, Deferred | DeferredLoss) for _, value in values):
            return recorded(None, args, kwargs)
        return self._module(*args, **kwargs)
