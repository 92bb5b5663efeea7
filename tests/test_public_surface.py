"""Public names are sorted, exported and documented, and the main ones have an example."""

import ast
import importlib
import inspect
import itertools
from pathlib import Path

import pytest

import adamas
from adamas.engines import ENGINES
from adamas.rules import RULES
from tests.support.optional_modules import is_missing

PACKAGES = [
    "adamas",
    "adamas.rules",
    "adamas.sampling",
    "adamas.engines",
    "adamas.accounting",
    "adamas.callbacks",
    "adamas.queries",
    "adamas.run",
    "adamas.check",
    "adamas.audit",
    "adamas.experiment",
    "adamas.federated",
    "adamas.finetune",
    "adamas.suggestions",
    "adamas.integrations.losses",
    "adamas.models",
    "adamas.data",
    "adamas.integrations.opacus",
    *([] if is_missing("pandas") else ["adamas.tabular"]),
]
# (package, name) -> why it has no docstring
WITHOUT_DOCSTRING = {
    ("adamas", "__version__"): "a string",
    ("adamas.check", "PASS"): "a verdict in a table",
    ("adamas.check", "FAIL"): "a verdict in a table",
    ("adamas.check", "NOT_APPLICABLE"): "a verdict in a table",
    ("adamas.audit", "METHOD"): "a title in a table",
}


def public_names(package):
    """Returns `__all__`, or else the public classes and functions that a module defines."""
    module = importlib.import_module(package)
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == package
    ]


NAMES = [(package, name) for package in PACKAGES for name in public_names(package)]


def explained_values(package):
    """Returns the names that a package assigns and explains by a string on the next line."""
    file = Path(importlib.import_module(package).__file__)
    files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
    found = set()
    for body in (ast.parse(each.read_text(encoding="utf-8")).body for each in files):
        for statement, after in itertools.pairwise(body):
            if (
                isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                targets = getattr(statement, "targets", [getattr(statement, "target", None)])
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def own_docstring(value):
    """Returns the docstring of a class, function or module, and never an inherited one."""
    return vars(value).get("__doc__") if inspect.isclass(value) else getattr(value, "__doc__", None)


def can_have_docstring(value):
    return inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)


def test_the_list_of_names_is_not_empty():
    assert {("adamas", "make_private"), ("adamas.rules", "AdamBC"), ("adamas.sampling", "Poisson")} <= set(
        NAMES
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_exists_and_has_a_docstring(package):
    module = importlib.import_module(package)
    values = explained_values(package)
    missing = []
    for name in public_names(package):
        value = getattr(module, name)
        explained = own_docstring(value) if can_have_docstring(value) else name in values
        if not explained and (package, name) not in WITHOUT_DOCSTRING:
            missing.append(name)
    assert not missing, f"{package}: no docstring of {missing}"


@pytest.mark.parametrize("package", ["adamas", "adamas.rules"])
def test_the_main_public_names_have_an_example(package):
    module = importlib.import_module(package)
    missing = [
        name
        for name in public_names(package)
        if (inspect.isclass(getattr(module, name)) or inspect.isroutine(getattr(module, name)))
        and ">>>" not in (own_docstring(getattr(module, name)) or "")
    ]
    assert not missing, f"{package}: no example (>>>) in the docstring of {missing}"


def test_the_names_without_a_docstring_exist():
    assert set(WITHOUT_DOCSTRING) <= set(NAMES)


def test_public_names_are_sorted_and_include_the_registries():
    assert list(adamas.__all__) == sorted(set(adamas.__all__))
    assert (Path(adamas.__file__).parent / "py.typed").is_file()
    offenders = [name for name in adamas.__all__ if not hasattr(adamas, name)]
    for package, registry in ((adamas.rules, RULES), (adamas.engines, ENGINES)):
        for item in registry.values():
            name = item.__name__
            if name not in package.__all__ or getattr(package, name, None) is not item:
                offenders.append(f"{package.__name__} does not export {name}, which its registry holds")
    assert not offenders, "\n".join(offenders)
