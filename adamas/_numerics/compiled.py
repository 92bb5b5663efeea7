"""Compiles loops with Numba, where it works. Elsewhere NumPy and torch functions do the same."""

import contextlib
import importlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

numba: Any = None  # None if missing or broken: `compiled` functions are then plain Python, and not used
with contextlib.suppress(Exception):
    numba = importlib.import_module("numba")
    # Most of Numba loads when it first compiles something: do that on import, not within a step.
    numba.njit("void()")(lambda: None)

Array: TypeAlias = np.ndarray


def compiled(function: Callable[..., Any]) -> Any:
    """Marks a function for Numba, under the rules of IEEE 754. The first call compiles it."""
    if numba is None:
        return function
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # there is no folder to write to
        return numba.njit(**options)(function)
