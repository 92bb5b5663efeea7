"""`import adamas` loads nothing heavy; each public name loads its part when it is first used."""

import subprocess
import sys
from pathlib import Path

import pytest

import adamas

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "numpy", "scipy", "dp_accounting", "numba", "rich", "typer", "safetensors")
OPTIONAL = (
    *("transformers", "trl", "peft", "accelerate", "datasets", "lightning", "pandas", "pyarrow", "sklearn"),
    *("tensorboard", "wandb", "mlflow", "flwr", "torch_geometric", "matplotlib", "opacus"),
)


def loaded(code):
    """Returns the packages that a fresh interpreter has loaded after the code."""
    code += "\nimport sys\nprint(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.subprocess
def test_import_adamas_loads_no_other_package():
    found = loaded("import adamas")
    assert "adamas" in found
    assert not found & {*HEAVY, *OPTIONAL}


@pytest.mark.subprocess
def test_public_names_load_when_they_are_used_and_never_an_optional_package():
    found = loaded("import adamas\nfor name in adamas.__all__: getattr(adamas, name)")
    assert {"torch", "dp_accounting"} <= found
    assert not found & set(OPTIONAL)


@pytest.mark.subprocess
def test_rules_do_without_accounting():
    found = loaded("from adamas import rules")
    assert "torch" in found
    assert not found & {"dp_accounting", "rich", "typer"}


def test_public_modules_are_attributes_and_other_names_are_not():
    assert adamas.graphs.__name__ == "adamas.graphs"
    assert set(adamas.__all__) <= set(dir(adamas))
    for name in ("no_such_name", "_no_such_name", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"module 'adamas' has no attribute '{name}'"):
            getattr(adamas, name)
