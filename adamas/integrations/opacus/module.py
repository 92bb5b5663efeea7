"""The module of a private loop: it accepts values of the batch, and plain tensors as before."""

from typing import Any

from torch import nn

from adamas.integrations.opacus.deferred import are_of, recorded


class PrivateModule(nn.Module):
    """A module whose calls on values of the batch are written down for the private step.

    On plain tensors it computes what the module computes: evaluate it so. For the values of a batch, a copy
    of it and the module of another run are plain modules, which must be frozen. It shares the parameters,
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
        if are_of(self._module, [list(args), kwargs]):
            return recorded(None, args, kwargs)
        return self._module(*args, **kwargs)
