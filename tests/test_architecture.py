"""How the package hangs together: imports go downwards, randomness has three homes, names are explained."""

import ast
import graphlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import adamas
from adamas.engines import ENGINES
from adamas.rules import RULES

PACKAGE = Path(adamas.__file__).parent

# From the bottom to the top. A module imports from lower layers only; the files of one sub-package
# ("engines" is all of adamas/engines) may import one another. "" is adamas/__init__.py.
LAYERS = [
    ["_version", "errors"],
    ["_validate", "_nests", "_streams", "_words"],
    ["_progress", "_numerics", "_storage", "_guards"],
    ["geometry", "distributed"],
    ["theory", "engines", "noise", "sampling", "rules"],
    ["clip", "loading", "secure_noise", "accounting"],
    ["privatize", "diagnostics"],
    ["run"],
    ["check"],
    ["audit"],
    ["finetune"],
    [""],
    ["data", "models"],
    ["experiment"],
    ["federated"],
    ["reproduce"],
    ["report"],
    ["cli"],
    ["__main__"],
]
RANKS = {unit: rank for rank, layer in enumerate(LAYERS) for unit in layer}

# These three follow from the layers, but a change of the layers must not bring them in.
FORBIDDEN = [("rules", "engines"), ("rules", "privatize"), ("engines", "rules")]


def module_name(file: Path) -> str:
    """`engines.base` for adamas/engines/base.py, `engines` for its __init__.py, "" for the package's."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(file): file for file in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in FILES.items()}


def unit_of(module: str) -> str:
    return module.split(".")[0]


def imported(module: str) -> set[str]:
    """The modules of the package that a module imports, anywhere in its file."""
    result = set()
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "adamas":
                    result.add(alias.name.removeprefix("adamas").removeprefix("."))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{FILES[module].name}: write imports in full, from adamas"
            if node.module and node.module.split(".")[0] == "adamas":
                source = node.module.removeprefix("adamas").removeprefix(".")
                for alias in node.names:
                    inner = f"{source}.{alias.name}".removeprefix(".")
                    result.add(inner if inner in FILES else source)
    return result


IMPORTS = {module: imported(module) for module in FILES}


def test_the_files_were_found():
    assert {"", "geometry", "rules.adam_bc", "engines", "engines.base"} <= set(FILES)
    assert "geometry" in IMPORTS["clip"]
    assert "_validate" in IMPORTS["theory"]  # from adamas import _validate


@pytest.mark.parametrize("module", FILES)
def test_every_module_has_a_layer(module):
    assert unit_of(module) in RANKS, (
        f"{FILES[module].relative_to(PACKAGE.parent)} is new: put {unit_of(module)!r} into LAYERS in "
        "tests/test_architecture.py, above all that it imports and below all that import it."
    )


@pytest.mark.parametrize("module", FILES)
def test_imports_go_downwards(module):
    unit = unit_of(module)
    for other in sorted(IMPORTS[module]):
        target = unit_of(other)
        if target != unit and {unit, target} <= RANKS.keys():
            assert RANKS[target] < RANKS[unit], (
                f"{module or 'adamas'} imports {other or 'adamas'}, which is not in a layer below it"
            )


def test_no_module_imports_itself_by_a_detour():
    try:
        graphlib.TopologicalSorter(IMPORTS).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"imports go in a circle: {' <- '.join(error.args[1])}")


@pytest.mark.parametrize(("unit", "other"), FORBIDDEN)
def test_rules_and_engines_and_the_door_do_not_know_one_another(unit, other):
    for module in FILES:
        if unit_of(module) == unit:
            assert other not in {unit_of(target) for target in IMPORTS[module]}, module


# --- randomness -----------------------------------------------------------------------------------------

MAY_DRAW = {
    "noise": "the noise of a release",
    "secure_noise": "the same, for secure runs",
    "sampling": "which examples take part",
    "_streams": "where the two get their seeds",
    "models": "initial weights",
}

# (module, expression) -> why it is no draw of its own.
ASKS_FOR_NOISE = {
    ("federated.partition", "np.random"): "names the type of a generator that _streams makes",
    ("federated.partition", "generator.multinomial"): "spreads public data with such a generator",
    ("rules._micro_adam_step", "np.random"): "names the type of a generator that _streams makes",
    ("_canaries", "np.random"): "names the type of a generator that _streams makes",
}

DRAWING = {
    "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "random_",
    "normal", "normal_", "add_normal_", "standard_normal", "log_normal_", "uniform", "uniform_",
    "exponential_",
    "cauchy_", "geometric_", "bernoulli", "bernoulli_", "multinomial", "poisson", "binomial",
    "default_rng", "randbits", "token_bytes", "urandom", "SystemRandom",
}  # fmt: skip
DRAWING_MODULES = {"random", "secrets", "numpy.random"}


def dotted(node: ast.expr) -> str | None:
    """`torch.randn` for the expression torch.randn; None for what is no chain of names."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (left := dotted(node.value)) is not None:
        return f"{left}.{node.attr}"
    return None


def draws(module: str) -> Iterator[str]:
    """Expressions and imports of a module that draw random values; docstrings and comments are none."""
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import | ast.ImportFrom):
            source = node.module if isinstance(node, ast.ImportFrom) else None
            for name in [source, *(alias.name for alias in node.names)]:
                if name in DRAWING_MODULES:
                    yield f"import {name}"
            if isinstance(node, ast.ImportFrom):
                yield from (f"from {source} import {a.name}" for a in node.names if a.name in DRAWING)
        elif isinstance(node, ast.Attribute):
            name = dotted(node)
            if node.attr in DRAWING:
                yield name or f"....{node.attr}"
            elif name in ("np.random", "numpy.random"):
                yield name


def test_draws_are_seen_where_they_are_made():
    assert any("add_normal_" in draw for draw in draws("noise"))
    assert any("np.random" in draw for draw in draws("_streams"))


@pytest.mark.parametrize("module", FILES)
def test_random_values_are_drawn_in_their_homes_only(module):
    if unit_of(module) in MAY_DRAW:
        return
    found = [draw for draw in draws(module) if (module, draw) not in ASKS_FOR_NOISE]
    assert not found, f"{module} draws by {found}; only {sorted(MAY_DRAW)} may"


# --- words ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [module for module in FILES if unit_of(module) != "cli"])
def test_only_the_command_line_prints(module):
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print", f"{module}, line {node.lineno}"


WITHOUT_DOCSTRING = {"__version__": "a string"}


@pytest.mark.parametrize("name", adamas.__all__)
def test_every_public_name_is_explained(name):
    assert hasattr(adamas, name)
    if name not in WITHOUT_DOCSTRING:
        assert inspect.getdoc(getattr(adamas, name)), f"adamas.{name} has no docstring"


def test_public_names_are_in_order_and_unique():
    assert list(adamas.__all__) == sorted(set(adamas.__all__))


@pytest.mark.parametrize("package", [adamas.rules, adamas.engines])
def test_the_packages_export_what_their_registries_hold(package):
    registry = RULES if package is adamas.rules else ENGINES
    for item in registry.values():
        assert item.__name__ in package.__all__
        assert getattr(package, item.__name__) is item


@pytest.mark.parametrize("module", FILES)
def test_every_module_is_explained(module):
    assert ast.get_docstring(TREES[module]), f"{FILES[module]} has no docstring"


@pytest.mark.parametrize("name", RULES)
def test_every_rule_says_what_it_releases_and_what_it_needs(name):
    text = RULES[name].__doc__ or ""
    for heading in ("Privacy:", "Needs:", "Args:", "Example:"):
        assert heading in text, f"the docstring of {RULES[name].__name__} has no {heading}"


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_says_what_it_needs(name):
    assert "Needs:" in (ENGINES[name].__doc__ or "")


def test_the_package_is_marked_as_typed():
    assert (PACKAGE / "py.typed").is_file()
