"""The module of a private loop, which accepts deferred values, and plain tensors as before."""

from typing import Any

from torch import nn

from adamas.integrations.opacus.deferred import are_of, recorded


class PrivateModule(nn.Module):
    """Records calls on deferred values for the private step.

    On plain tensors it computes what the module computes: evaluate it in this way. It shares the parameters,
    and offers the module's attributes. As in Opacus, the names in its `state_dict()` begin with `_module.`. A
    copy of it, or the module of another run, accepts values of a batch only if it is frozen.

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
