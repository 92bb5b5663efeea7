"""Private training for scripts written for Opacus 1.6. Opacus itself is not needed.

Change the import, and leave the loop as it is:

    from adamas.integrations.opacus import PrivacyEngine

`docs/from_opacus.md` lists which arguments are exact, and which are refused and why.
"""

from adamas.integrations.opacus.accountant import Accountant
from adamas.integrations.opacus.criterion import PrivateCriterion
from adamas.integrations.opacus.deferred import Deferred, DeferredLoss
from adamas.integrations.opacus.engine import PrivacyEngine
from adamas.integrations.opacus.loader import PrivateLoader
from adamas.integrations.opacus.memory import BatchMemoryManager
from adamas.integrations.opacus.module import PrivateModule
from adamas.integrations.opacus.optimizer import PrivateOptimizer

__all__ = [
    "Accountant",
    "BatchMemoryManager",
    "Deferred",
    "DeferredLoss",
    "PrivacyEngine",
    "PrivateCriterion",
    "PrivateLoader",
    "PrivateModule",
    "PrivateOptimizer",
]
