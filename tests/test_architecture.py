"""The shape of the package: imports go downwards, few modules draw random values, all modules are explained.

Each test reads all files, collects every offender and fails with the whole list.
"""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import adamas
from adamas.engines import ENGINES
from adamas.rules import RULES

PACKAGE = Path(adamas.__file__).parent
# From the bottom to the top. A module imports from lower layers only; the files of one sub-package
# ("engines" is all of adamas/engines) may import one another. "" is adamas/__init__.py.
LAYERS = [
    # The version and the exceptions: they import nothing.
    ["_version", "errors"],
    # Small tools: argument checks, nested batches, streams of random bits, formatted numbers.
    ["_validate", "_nests", "_streams", "_words"],
    # Services that know nothing of privacy: progress bars, compiled kernels, files, guards of the process.
    ["_progress", "_numerics", "_storage", "_guards"],
    # The geometry that gradients are clipped in, and the ranks of a distributed run.
    ["geometry", "distributed"],
    # Formulas that papers prove and that rules take their constants from.
    ["theory"],
    # The parts of a step, none of which needs another: engines, noise, sampling and rules.
    ["engines", "noise", "sampling", "rules"],
    # Parts that build on those: clipping, loaders, secure noise, and the accounting of what samplers release.
    ["clip", "loading", "secure_noise", "accounting"],
    # The places where private data becomes public: gradients, and counts. Diagnostics, and nodes of graphs.
    ["privatize", "queries", "diagnostics", "graphs"],
    # What watches a run, step by step.
    ["callbacks"],
    # A run joins the layers before: it is made, loops, saves and resumes.
    ["run"],
    # Checks replay a run and judge it.
    ["check"],
    # Audits train runs with canaries and bound their epsilon from below.
    ["audit"],
    # Fine-tuning prepares models for a run.
    ["finetune"],
    # Settings for a training, from its sizes and budget.
    ["suggestions"],
    # The public names of the library.
    [""],
    # Losses of each example for models of other libraries, and the loops of those libraries.
    ["integrations"],
    # Data sets and models for experiments, which the library itself does not need.
    ["data", "models"],
    # Estimators for tables.
    ["tabular"],
    # One training from settings to files, and sweeps.
    ["experiment"],
    # Trainings over many clients.
    ["federated"],
    # Tables of papers: many experiments and federated trainings.
    ["reproduce"],
    # Pages that show the results of runs and tables.
    ["report"],
    # The command line offers everything below it.
    ["cli"],
    # `python -m adamas`.
    ["__main__"],
]
RANKS = {unit: rank for rank, layer in enumerate(LAYERS) for unit in layer}
# The layers exclude these imports already. They stay excluded if a layer moves.
FORBIDDEN = {("rules", "engines"), ("rules", "privatize"), ("engines", "rules")}


def module_name(file: Path) -> str:
    """Returns `engines.base` for adamas/engines/base.py, `engines` for its __init__.py, "" for adamas."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(file): file for file in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in FILES.items()}


def unit_of(module: str) -> str:
    return module.split(".")[0]


def imported(module: str) -> set[str]:
    """Returns the modules of the package that a module imports, anywhere in its file."""
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


def misplaced_imports(imports: dict[str, set[str]]) -> Iterator[str]:
    """Yields modules without a layer, and imports from the same or a higher layer."""
    for module, others in imports.items():
        unit = unit_of(module)
        if unit not in RANKS:
            yield (
                f"{FILES[module].relative_to(PACKAGE.parent)} has no layer: put {unit!r} into LAYERS, "
                "above all that it imports and below all that import it"
            )
        for other in sorted(others):
            target = unit_of(other)
            upwards = {unit, target} <= RANKS.keys() and RANKS[target] >= RANKS[unit]
            if target != unit and (upwards or (unit, target) in FORBIDDEN):
                yield f"{module or 'adamas'} imports {other or 'adamas'}, which is not in a layer below it"


def test_imports_go_downwards_and_have_no_cycle():
    imports = {module: imported(module) for module in FILES}
    assert {"", "geometry", "rules.adam_bc", "engines", "engines.base"} <= set(FILES)
    assert "geometry" in imports["clip"]
    assert "_validate" in imports["theory"]  # from adamas import _validate
    offenders = list(misplaced_imports(imports))
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        offenders.append(f"imports have a cycle: {' <- '.join(error.args[1])}")
    assert not offenders, "\n".join(offenders)


MAY_DRAW = {
    "noise": "the noise of a release",
    "secure_noise": "the same, for secure runs",
    "queries": "the noise of a released count",
    "sampling": "which examples take part",
    "_streams": "the seeds of the three above",
    "models": "initial weights",
}
# (module, expression) -> why it is allowed
EXCEPTIONS = {
    ("federated.partition", "generator.multinomial"): "partitions public data with a generator from _streams",
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
    """Returns `torch.randn` for the expression torch.randn, and None for other than a chain of names."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (left := dotted(node.value)) is not None:
        return f"{left}.{node.attr}"
    return None


def draws(tree: ast.Module) -> Iterator[str]:
    """Yields expressions and imports that can draw random values: all of np.random except its type."""
    only_types = {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "Generator"
    }
    for node in ast.walk(tree):
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
            elif name in ("np.random", "numpy.random") and node not in only_types:
                yield name


def test_only_the_listed_modules_draw_random_values():
    assert any("add_normal_" in draw for draw in draws(TREES["noise"]))
    assert any("np.random" in draw for draw in draws(TREES["_streams"]))
    assert not list(draws(ast.parse("def f(generator: np.random.Generator): ...")))
    assert list(draws(ast.parse("np.random.Generator(np.random.PCG64())")))
    offenders = [
        f"{module} draws by {draw}; only {sorted(MAY_DRAW)} may"
        for module, tree in TREES.items()
        if unit_of(module) not in MAY_DRAW
        for draw in draws(tree)
        if (module, draw) not in EXCEPTIONS
    ]
    assert not offenders, "\n".join(offenders)


def test_only_the_command_line_prints():
    offenders = [
        f"{module}, line {node.lineno}"
        for module, tree in TREES.items()
        if unit_of(module) != "cli"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not offenders, "\n".join(offenders)


HEADINGS_OF_A_RULE = ("Privacy:", "Needs:", "Args:", "Example:")


def unexplained() -> Iterator[str]:
    """Yields modules without a docstring, and rules and engines whose docstring lacks a heading."""
    for module, tree in TREES.items():
        if not ast.get_docstring(tree):
            yield f"{FILES[module].relative_to(PACKAGE.parent)} has no docstring"
    for rule in RULES.values():
        for heading in HEADINGS_OF_A_RULE:
            if heading not in (rule.__doc__ or ""):
                yield f"the docstring of {rule.__name__} has no {heading}"
    for engine in ENGINES.values():
        if "Needs:" not in (engine.__doc__ or ""):
            yield f"the docstring of {engine.__name__} has no Needs:"


def test_modules_have_docstrings_and_rules_and_engines_their_headings():
    offenders = list(unexplained())
    assert not offenders, "\n".join(offenders)
