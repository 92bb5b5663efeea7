"""A plugin of pytest that hides the packages of all extras that the fast tests do without.

    python -m pytest -p tests.support.hidden_packages -m "not slow"

passes as it would where those packages are not installed.
"""

import sys
from importlib.abc import MetaPathFinder

HIDDEN = {"flwr", "ray", "transformers", "peft", "opacus", "selenium", "matplotlib"}


class Hiding(MetaPathFinder):
    """Finds no package of `HIDDEN`, whether or not it is installed."""

    def find_spec(self, name, path=None, target=None):
        """Raises the error of a missing package, or leaves the module to the next finder."""
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


sys.meta_path.insert(0, Hiding())
