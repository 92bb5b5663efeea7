"""Adaptive optimizers for differentially private training in PyTorch, with accounting you can check.

The parts load when they are first used, so that `import adamas` is quick.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from adamas._version import __version__

if TYPE_CHECKING:
    from adamas import (
        callbacks,
        diagnostics,
        distributed,
        engines,
        finetune,
        queries,
        rules,
        sampling,
        theory,
    )
    from adamas.accounting import calibrate
    from adamas.accounting.data_ledger import DataLedger
    from adamas.accounting.ledger import Ledger
    from adamas.clip import clipped_sum
    from adamas.errors import BudgetError, DistributedError, UnsupportedError
    from adamas.geometry import Geometry
    from adamas.privatize import PrivateGradient
    from adamas.run.checkpoint import load
    from adamas.run.loop import PrivateRun
    from adamas.run.make import make_private
    from adamas.suggestions import Suggestion, suggest

__all__ = [
    "BudgetError",
    "DataLedger",
    "DistributedError",
    "Geometry",
    "Ledger",
    "PrivateGradient",
    "PrivateRun",
    "Suggestion",
    "UnsupportedError",
    "__version__",
    "calibrate",
    "callbacks",
    "clipped_sum",
    "diagnostics",
    "distributed",
    "engines",
    "finetune",
    "load",
    "make_private",
    "queries",
    "rules",
    "sampling",
    "suggest",
    "theory",
]

_HOMES = {
    "BudgetError": "errors",
    "DataLedger": "accounting.data_ledger",
    "DistributedError": "errors",
    "Geometry": "geometry",
    "Ledger": "accounting.ledger",
    "PrivateGradient": "privatize",
    "PrivateRun": "run.loop",
    "Suggestion": "suggestions",
    "UnsupportedError": "errors",
    "calibrate": "accounting",
    "clipped_sum": "clip",
    "load": "run.checkpoint",
    "make_private": "run.make",
    "suggest": "suggestions",
}


def __getattr__(name: str) -> Any:
    """Loads a name of `__all__` or a public module of the package (PEP 562)."""
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
