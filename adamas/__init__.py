"""Adaptive optimizers for differentially private training in PyTorch, with accounting you can check."""

from adamas import diagnostics, distributed, engines, finetune, rules, sampling, theory
from adamas._version import __version__
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
from adamas.suggest import Suggestion, suggest

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
    "clipped_sum",
    "diagnostics",
    "distributed",
    "engines",
    "finetune",
    "load",
    "make_private",
    "rules",
    "sampling",
    "suggest",
    "theory",
]
