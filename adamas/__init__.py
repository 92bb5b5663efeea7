"""Adaptive optimizers for differentially private training in PyTorch, with a true epsilon."""

from adamas import calibrate, diagnostics, distributed, engines, finetune, rules, sampling, theory
from adamas._version import __version__
from adamas.clip import clipped_sum
from adamas.errors import DistributedError, UnsupportedError
from adamas.geometry import Geometry
from adamas.ledger import Ledger
from adamas.privatize import PrivateGradient
from adamas.run import PrivateRun
from adamas.training import make_private

__all__ = [
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
    "make_private",
    "rules",
    "sampling",
    "theory",
]
