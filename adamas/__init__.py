"""Adaptive optimizers for differentially private training in PyTorch, with a true epsilon."""

from adamas import calibrate, diagnostics, distributed, engines, finetune, rules, sampling, theory
from adamas._version import __version__
from adamas.checkpoint import load
from adamas.clip import clipped_sum
from adamas.data_ledger import DataLedger
from adamas.errors import BudgetError, DistributedError, UnsupportedError
from adamas.geometry import Geometry
from adamas.ledger import Ledger
from adamas.privatize import PrivateGradient
from adamas.run import PrivateRun
from adamas.training import make_private

__all__ = [
    "BudgetError",
    "DataLedger",
    "DistributedError",
    "Geometry",
    "Ledger",
    "PrivateGradient",
    "PrivateRun",
    "UnsupportedError",
    "__version__",
    "calibrate",
    "clipped_sum",
    "diagnostics",
    "distributed",
    "engines",
    "finetune",
    "load",
    "make_private",
    "rules",
    "sampling",
    "theory",
]
