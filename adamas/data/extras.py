"""Optional packages, imported when a data set needs them."""

import importlib
from typing import Any


def optional(module: str, package: str) -> Any:
    """The module, or an error that says how to install the package it belongs to."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RuntimeError(
            f"{package} is needed for this data set and is not installed. Run: "
            "pip install 'adamas[experiments]'"
        ) from error
