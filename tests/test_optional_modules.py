"""Every module of adamas can be imported without extras, except those that are listed with their package."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.optional_modules import NEEDS, is_missing

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

IMPORTS_ALL = """
import importlib, pathlib
import tests.support.hidden_packages as hiding

hiding.hide("PIL", "tokenizers", "cryptography")  # of extras that nothing imports before it needs them
for path in sorted(pathlib.Path("adamas").rglob("*.py")):
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    if not module.endswith("__main__"):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            print(module, error.name.partition('.')[0])
"""


@pytest.mark.subprocess
def test_exactly_the_listed_modules_need_an_extra():
    done = subprocess.run([sys.executable, "-c", IMPORTS_ALL], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert dict(line.split() for line in done.stdout.splitlines()) == NEEDS


def test_the_packages_that_modules_need_belong_to_extras():
    extras = {
        requirement.partition("[")[0].partition(">")[0]
        for requirements in PROJECT["project"]["optional-dependencies"].values()
        for requirement in requirements
    }
    assert set(NEEDS.values()) <= extras


def test_a_package_that_is_not_installed_is_missing():
    assert is_missing("no_such_package")
    assert not is_missing("torch")


@pytest.mark.subprocess
@pytest.mark.parametrize("package", ["no_such_package", "adamas.no_such_module"])
def test_an_import_error_of_any_other_module_fails(package, tmp_path):
    (tmp_path / "broken.py").write_text(f'import {package}\n"""\n>>> 1 + 1\n2\n"""\n')
    options = ["-c", "pyproject.toml", "-p", "no:cacheprovider", "--collect-only", "-qq"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path / "broken.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"No module named '{package}'" in done.stdout
