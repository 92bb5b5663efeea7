"""The documents agree with the code: examples run, and the files, tests and versions they name exist."""

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
TESTS = ROOT / "tests"
PAGES = sorted(
    str(file.relative_to(ROOT))
    for file in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "experiments" / "README.md"]
)


def python_blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)


def functions_of(file):
    tree = ast.parse(file.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", ["docs/pitfalls.md", "docs/reliability.md"])
def test_the_tests_that_a_page_names_exist(page):
    named = re.findall(r"`((?:\w+/)*test_\w+\.py)(?:::(test_\w+))?`", (ROOT / page).read_text())
    assert len(named) > 15
    for file, test in named:
        found = [path for path in TESTS.rglob(file) if not test or test in functions_of(path)]
        assert len(found) == 1, f"{page} names {file}::{test}, which is in tests/ {len(found)} times"


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


def test_the_tree_on_the_design_page_lists_every_module_and_package():
    page = (ROOT / "docs/design.md").read_text()
    tree = page[page.index("## The tree") : page.index("### The walk of one step")]
    for item in sorted((ROOT / "adamas").iterdir()):
        if item.name != "__init__.py" and (item.suffix == ".py" or (item / "__init__.py").exists()):
            assert re.search(rf"\b{item.stem}\b", tree), f"docs/design.md does not list {item.name}"


def test_the_readme_has_at_most_150_lines():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


VERSIONS = {  # name in docs/formats.md -> package, and the pattern of its version in the code
    "checkpoint": ("run", r'^_KIND, _VERSION = "checkpoint", (\d+)'),
    "run state": ("run", r"^(?:_STATE)?_VERSION = (\d+)"),
    "journal": ("accounting", r'^_MAGIC = b"adamas journal (\d+)"'),
    "data set's ledger": ("accounting", r"^_?VERSION = (\d+)"),
    "federated training": ("federated", r'^_KIND, _VERSION = "federated training", (\d+)'),
}


@pytest.mark.parametrize("name", VERSIONS)
def test_the_formats_page_states_the_versions_of_the_code(name):
    package, statement = VERSIONS[name]
    code = "\n".join(file.read_text() for file in sorted((ROOT / "adamas" / package).rglob("*.py")))
    (version,) = re.findall(statement, code, flags=re.MULTILINE)
    row = rf"^\| {name} [^|]*\|[^|]*\| {version}\b"
    assert re.search(row, (ROOT / "docs/formats.md").read_text(), flags=re.MULTILINE)


def test_both_loops_of_the_readme_train_and_the_first_keeps_its_budget():
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
def test_a_calculation_in_the_readme_gives_the_stated_answer(command, answer, capsys):
    with pytest.raises(SystemExit) as stop:
        main(command.split())
    assert stop.value.code == 0
    assert answer in capsys.readouterr().out.split()


def test_the_example_rule_in_contributing_works():
    (skeleton,) = python_blocks("CONTRIBUTING.md")
    names = {}
    exec(skeleton, names)
    p = torch.nn.Parameter(torch.zeros(2))
    rule = names["Sign"]([p], lr=0.5)
    assert isinstance(rule, Rule)
    adamas.PrivateGradient({p: torch.tensor([3.0, -2.0])}, {p: 1.0}).write_to(rule)
    rule.step()
    assert p.tolist() == [-0.5, 0.5]


def test_the_module_on_the_federated_page_is_a_task(tmp_path, monkeypatch):
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
