"""Public names are explained: each has a docstring, and the ones that users meet first have an example."""

import ast
import importlib
import inspect
import itertools
from pathlib import Path

import pytest

PACKAGES = [
    "adamas",
    "adamas.rules",
    "adamas.sampling",
    "adamas.engines",
    "adamas.accounting",
    "adamas.run",
    "adamas.check",
    "adamas.audit",
    "adamas.experiment",
    "adamas.federated",
    "adamas.finetune",
    "adamas.models",
    "adamas.data",
]

# (package, name) -> why it has no docstring of its own.
WITHOUT_DOCSTRING = {
    ("adamas", "__version__"): "a string that everybody knows",
    ("adamas.check", "PASS"): "a verdict in a table",
    ("adamas.check", "FAIL"): "a verdict in a table",
    ("adamas.check", "NOT_APPLICABLE"): "a verdict in a table",
    ("adamas.audit", "METHOD"): "a title in a table",
}


def public_names(package):
    """`__all__`; of a module without it, the classes and functions that it defines."""
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
    """Names that are assigned anywhere in a package and followed by a string that explains them."""
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
    """The docstring that was written for a class, function or module, and none that it inherits."""
    return vars(value).get("__doc__") if inspect.isclass(value) else getattr(value, "__doc__", None)


def explains_itself(value):
    return inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)


def test_the_packages_were_found():
    assert {("adamas", "make_private"), ("adamas.rules", "AdamBC"), ("adamas.sampling", "Poisson")} <= set(
        NAMES
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_exists_and_is_explained(package):
    module = importlib.import_module(package)
    values = explained_values(package)
    missing = []
    for name in public_names(package):
        value = getattr(module, name)
        explained = own_docstring(value) if explains_itself(value) else name in values
        if not explained and (package, name) not in WITHOUT_DOCSTRING:
            missing.append(name)
    assert not missing, f"{package}: no docstring of {missing}"


@pytest.mark.parametrize("package", ["adamas", "adamas.rules"])
def test_what_users_meet_first_has_an_example(package):
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
