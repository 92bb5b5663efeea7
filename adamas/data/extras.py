"""Optional packages, imported when a data set needs them."""

import importlib
from typing import Any


def optional(module: str, package: str) -> Any:
    """Imports a module, or raises an error that says how to install its package."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RuntimeError(
            f"{package} is needed for this data set and is not installed. Run: "
            "pip install 'adamas[experiments]'"
        ) from error
