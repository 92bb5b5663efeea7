"""Tells Python objects apart: plain values, library code, objects that hide their state, names in code."""

import dis
import functools
import gc
import logging
import sys
import threading
from collections import deque
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, GeneratorType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

# Code and classes of these packages are trusted to keep nothing. All others count as the user's.
_LIBRARIES = sys.stdlib_module_names | {
    *("adamas", "torch", "torchvision", "torchaudio", "functorch", "numpy", "scipy", "sklearn", "pandas"),
    *("transformers", "tokenizers", "datasets", "safetensors", "accelerate", "peft", "timm", "einops"),
    *("numba", "matplotlib", "tqdm", "PIL", "dp_accounting"),
    *("lightning", "lightning_utilities", "torchmetrics"),
}
ATOMS = (
    *(int, float, complex, str, bytes, bool, type(None), type(...), type(NotImplemented), range, slice),
    *(np.generic, np.dtype, torch.dtype, torch.device, torch.layout, torch.memory_format),
)
CODE = (
    BuiltinFunctionType,
    CodeType,
    type(int.__add__),
    type((1).__add__),
    type(str.join),
    type(dict.fromkeys),
)
_LOCKS = (type(threading.Lock()), type(threading.RLock()), logging.Logger, logging.Handler)
# Objects of C classes whose contents are followed anyway.
_SHOWN = (dict, list, tuple, set, frozenset, deque, Tensor, np.ndarray, nn.Module, BaseException, type)
_COMPILED = ("torch", "numpy")
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_GLOBALS = {"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME"}
_LINK = "_lru_list_elem"  # of functools
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM"}


def cached_in(wrapper: Any) -> Iterator[Any]:
    """Yields the arguments and the results that a cache of functools holds."""
    for part in gc.get_referents(wrapper):
        if part is vars(wrapper):  # attributes of the wrapper, such as the function
            continue
        if isinstance(part, dict) and any(type(link).__name__ == _LINK for link in part.values()):
            continue  # the index of a cache with a limit, whose arguments and results are parts themselves
        yield part


def is_opaque(value: Any) -> bool:
    """Tells whether an object hides its state: its class is not written in Python."""
    if isinstance(value, GeneratorType):
        return not is_library(str(value.gi_frame.f_globals.get("__name__")) if value.gi_frame else "adamas")
    return _is_native(type(value)) and not isinstance(value, _SHOWN)


def _is_native(kind: type) -> bool:
    """Tells whether a class inherits its memory layout from a C class."""
    if kind.__base__ is None:
        return False
    if not kind.__flags__ & _HEAP:
        return True
    if kind.__base__ is object:
        return not {"__dict__", "__slots__"} & vars(kind).keys()
    return _is_native(kind.__base__)


def is_quiet(value: Any) -> bool:
    """Tells whether an object of a library holds nothing of a forward."""
    top = str(type(value).__module__).partition(".")[0]
    if isinstance(value, _SHOWN):
        return isinstance(value, torch.Size)
    return isinstance(value, _LOCKS) or top == "adamas" or (top in _COMPILED and _is_native(type(value)))


def is_library(module: str | None) -> bool:
    """Tells whether a module belongs to a library that is trusted to keep nothing."""
    return str(module).partition(".")[0] in _LIBRARIES and module != "__main__"


def made_by_hooks(module: nn.Module) -> set[str]:
    """Returns the weights that weight_norm, spectral_norm and prune recompute before each forward."""
    hooks = module.__dict__["_forward_pre_hooks"].values()
    return {
        str(getattr(hook, "name", None) or getattr(hook, "_tensor_name", None))
        for hook in hooks
        if isinstance(hook, WeightNorm | SpectralNorm | BasePruningMethod)
    }


@functools.lru_cache(maxsize=4096)
def names_in(code: CodeType) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Returns the global variables, attributes and modules that code names, inner functions included."""
    names, attributes, modules = set(), set(), set()
    for step in dis.get_instructions(code):
        if step.opname in _GLOBALS:
            names.add(str(step.argval))
        elif step.opname in _ATTRIBUTES:
            attributes.add(str(step.argval))
        elif step.opname == "IMPORT_NAME":
            modules.add(str(step.argval))
    for part in code.co_consts:
        if isinstance(part, CodeType):
            for mine, theirs in zip((names, attributes, modules), names_in(part), strict=True):
                mine |= theirs
    return frozenset(names), frozenset(attributes), frozenset(modules)
