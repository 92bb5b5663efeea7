"""A plugin of pytest that hides the optional packages, which the fast tests do not need.

    python -m pytest -p tests.support.hidden_packages -m "not slow"

runs the tests as if those packages were not installed.
"""

import sys
from importlib.abc import MetaPathFinder

HIDDEN = {
    "accelerate",
    "datasets",
    "flwr",
    "lightning",
    "matplotlib",
    "mlflow",
    "opacus",
    "pandas",
    "peft",
    "pyarrow",
    "ray",
    "selenium",
    "tensorboard",
    "torch_geometric",
    "transformers",
    "trl",
    "wandb",
}


class Hiding(MetaPathFinder):
    """Makes the packages of `HIDDEN` look as if they were not installed."""

    def find_spec(self, name, path=None, target=None):
        """Raises the error of a missing package, or leaves the module to the next finder."""
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


sys.meta_path.insert(0, Hiding())
