"""A plugin of pytest that hides the optional packages, which the fast tests do not need.

    python -m pytest -p tests.support.hidden_packages -m "not slow"

runs the tests as if those packages were not installed.
"""

import sys

HIDDEN = (
    *("accelerate", "datasets", "flwr", "lightning", "matplotlib", "mlflow", "opacus", "pandas", "peft"),
    *("pyarrow", "pytorch_lightning", "ray", "selenium", "tensorboard", "torch_geometric", "transformers"),
    *("trl", "wandb"),
)


def hide(*packages):
    """Makes imports of packages fail, and `importlib.util.find_spec` return None, as if they were missing."""
    sys.modules.update(dict.fromkeys(packages))


hide(*HIDDEN)
