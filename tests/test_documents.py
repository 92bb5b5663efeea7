"""The documents agree with the code: their code runs, and the files, tests and versions they name exist."""

import ast
import re
from pathlib import Path

import pytest
import torch

import adamas
from adamas.cli import main
from adamas.federated.settings import FederatedSettings
from adamas.federated.task import make_task
from adamas.federated.training import train_in_process
from adamas.rules.base import Rule

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    str(file.relative_to(ROOT))
    for file in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "experiments" / "README.md"]
)


def python_blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)


def functions_of(file):
    """Names of the functions in a file of tests/, in whatever folder it is."""
    found = list((ROOT / "tests").rglob(file))
    assert len(found) == 1, f"{file} is in tests/ {len(found)} times"
    tree = ast.parse(found[0].read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", ["docs/pitfalls.md", "docs/reliability.md"])
def test_the_tests_that_a_page_names_exist(page):
    named = re.findall(r"`(test_\w+\.py)(?:::(test_\w+))?`", (ROOT / page).read_text())
    assert len(named) > 15
    for file, test in named:
        assert not test or test in functions_of(file), f"{page} names {file}::{test}"


@pytest.mark.parametrize("page", PAGES)
def test_the_files_that_a_page_links_to_exist(page):
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


@pytest.mark.parametrize("page", PAGES)
def test_the_paths_that_a_page_names_exist(page):
    pattern = r"`((?:adamas|benchmarks|docs|examples|experiments|scripts|tests)/[\w./-]+)`"
    for path in re.findall(pattern, (ROOT / page).read_text()):
        assert (ROOT / path).exists(), f"{page} names {path}"


def test_the_tree_of_the_design_page_has_every_module_and_package():
    page = (ROOT / "docs/design.md").read_text()
    tree = page[page.index("## The tree") : page.index("### The walk of one step")]
    for item in sorted((ROOT / "adamas").iterdir()):
        if item.name != "__init__.py" and (item.suffix == ".py" or (item / "__init__.py").exists()):
            assert re.search(rf"\b{item.stem}\b", tree), f"docs/design.md does not have {item.name}"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


VERSIONS = {  # name in docs/formats.md -> package, and how its code states the version
    "checkpoint": ("run", r'^_KIND, _VERSION = "checkpoint", (\d+)'),
    "run state": ("run", r"^(?:_STATE)?_VERSION = (\d+)"),
    "journal": ("accounting", r'^_MAGIC = b"adamas journal (\d+)"'),
    "data set's ledger": ("accounting", r"^_?VERSION = (\d+)"),
    "federated training": ("federated", r'^_KIND, _VERSION = "federated training", (\d+)'),
}


@pytest.mark.parametrize("name", VERSIONS)
def test_the_page_of_formats_has_the_versions_of_the_code(name):
    package, statement = VERSIONS[name]
    code = "\n".join(file.read_text() for file in sorted((ROOT / "adamas" / package).rglob("*.py")))
    (version,) = re.findall(statement, code, flags=re.MULTILINE)
    row = rf"^\| {name} [^|]*\|[^|]*\| {version}\b"
    assert re.search(row, (ROOT / "docs/formats.md").read_text(), flags=re.MULTILINE)


def test_the_readme_trains_within_its_budget_and_in_the_open():
    closed, opened = python_blocks("README.md")
    torch.manual_seed(0)
    names = {}
    exec(closed, names)
    assert 2.9 < names["run"].epsilon() <= 3.0
    model = names["model"]
    names["run"] = adamas.make_private(
        *(model, names["rule"], names["digits"].train, names["loss"]),
        **{"batch_size": 64, "steps": 2, "noise_multiplier": 1.0, "delta": 1e-5},
    )
    before = model[1].weight.detach().clone()
    exec(opened, names)
    assert names["run"].steps_done == 2
    assert not torch.equal(model[1].weight, before)


CALCULATIONS = re.findall(
    r"^adamas ((?:epsilon|noise|steps) .*?)\s+# ([\d.]+)$",
    (ROOT / "README.md").read_text(),
    flags=re.MULTILINE,
)


def test_the_readme_has_three_calculations():
    assert len(CALCULATIONS) == 3


@pytest.mark.parametrize(("command", "answer"), CALCULATIONS)
def test_a_calculation_of_the_readme_has_the_answer_beside_it(command, answer, capsys):
    with pytest.raises(SystemExit) as stop:
        main(command.split())
    assert stop.value.code == 0
    assert answer in capsys.readouterr().out.split()


def test_the_skeleton_rule_is_a_rule():
    (skeleton,) = python_blocks("CONTRIBUTING.md")
    names = {}
    exec(skeleton, names)
    p = torch.nn.Parameter(torch.zeros(2))
    rule = names["Sign"]([p], lr=0.5)
    assert isinstance(rule, Rule)
    adamas.PrivateGradient({p: torch.tensor([3.0, -2.0])}, {p: 1.0}).write_to(rule)
    rule.step()
    assert p.tolist() == [-0.5, 0.5]


def test_the_module_of_the_federated_page_is_a_task(tmp_path, monkeypatch):
    (module,) = python_blocks("docs/federated.md")
    (tmp_path / "task_of_the_page.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    settings = FederatedSettings(
        task="task_of_the_page",
        **{"clients": 3, "rounds": 2, "local_steps": 2, "batch_size": 20, "noise_multiplier": 1.0},
        **{"delta": 1e-5, "accountant": "rdp"},
    )
    result = train_in_process(settings, make_task(settings), tmp_path / "out")
    assert result["rounds_asked"] == [2, 2, 2]
    assert result["test_accuracy"] is None
