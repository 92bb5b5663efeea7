"""Looks once, below the functions of Python, for computation on data that the recorder does not see.

The recorder sees functions that are called from Python. TorchScript, compiled modules and extensions compute
without calling any; what they return would look like a constant.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adamas.errors import UnsupportedError


def check_modules(model: nn.Module) -> None:
    """Raises if a module computes without calling functions of torch from Python."""
    for name, module in model.named_modules():
        compiled = type(module).__name__ == "OptimizedModule"
        if isinstance(module, torch.jit.ScriptModule) or compiled:
            kind = "compiled by torch.compile" if compiled else "a TorchScript module"
            raise UnsupportedError(
                f"{name or 'the model'} is {kind}, whose functions the engine cannot see. Pass the plain "
                "module, or use engine='loop'."
            )


class Below(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows data by its memory, and raises where it is computed with outside of any function that was seen.

    Args:
        inputs: The tensors of the batch.
        inside: Tells whether a function is being followed at the moment.
    """

    def __init__(self, inputs: list[Tensor], inside: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inside = inside
        self.refusal: UnsupportedError | None = None
        # Storages are held, so that nothing else comes to their place in memory.
        self._data = {s.data_ptr(): s for s in (x.untyped_storage() for x in inputs)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # the recorder need not see how it is watched
            return self._followed(func, args, kwargs or {})

    def _followed(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        tainted = any(self.holds(t) for t in tensors)
        if tainted and not self._inside():
            self.refusal = UnsupportedError(
                f"The forward computes {func.__name__.split('.')[0]} on the batch where the engine cannot "
                "see it (TorchScript, a compiled function or an extension). Call functions of torch from "
                "Python, or use engine='loop'."
            )
            raise self.refusal
        result = func(*args, **kwargs)
        if tainted:
            for t in tree_leaves(result):
                if isinstance(t, Tensor) and t.layout == torch.strided:
                    storage = t.untyped_storage()
                    self._data.setdefault(storage.data_ptr(), storage)
        return result

    def holds(self, t: Tensor) -> bool:
        """Tells whether the memory of a tensor has data, and is held here."""
        return t.layout == torch.strided and t.untyped_storage().data_ptr() in self._data
