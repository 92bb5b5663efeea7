"""Loops that Numba compiles where it is installed.

Without Numba, or with one that does not work, the same is done with functions of NumPy and torch.
"""

import contextlib
import importlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

numba: Any = None  # missing or broken: what is `compiled` is then plain Python, and not used
with contextlib.suppress(Exception):
    numba = importlib.import_module("numba")
    # Most of Numba loads when it first compiles something: here, with the other imports, and not in a step.
    numba.njit("void()")(lambda: None)

Array: TypeAlias = np.ndarray


def compiled(function: Callable[..., Any]) -> Any:
    """The function for Numba, with the rules of IEEE 754; compiled when it is first called."""
    if numba is None:
        return function
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # there is no folder to write to
        return numba.njit(**options)(function)
