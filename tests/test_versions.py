"""`scripts/test-versions` reads bounds and results rightly, and its table speaks of the present matrix."""

import importlib.machinery
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def load_script():
    loader = importlib.machinery.SourceFileLoader("test_versions_script", f"{ROOT}/scripts/test-versions")
    script = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(script)
    return script


SCRIPT = load_script()
MATRIX = SCRIPT.matrix()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def rows_of_page():
    """Returns the table of docs/versions.md: name of a row -> heading -> cell."""
    lines = [line for line in SCRIPT.PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): dict(zip(table[0], row, strict=True)) for row in table[1:]}


def pinned(requirements):
    return dict(one.split("==") for one in requirements)


def test_the_lowest_versions_are_the_larger_of_two_bounds():
    project = {
        "dependencies": ["torch>=2.8", "numpy>=1.26", "rich"],
        "optional-dependencies": {
            "text": ["adamas[tables]", "tokens>=3"],
            "tables": ["numpy>=1.9", "flow[simulation]>=1.41,<2", "torch>=2.10"],
            "test": ["pytest>=8"],
        },
    }
    assert SCRIPT.lowest(project, ["text", "test"]) == [
        *("flow==1.41", "numpy==1.26", "tokens==3", "torch==2.10"),
    ]


@pytest.mark.parametrize(
    ("line", "cell"),
    [
        ("8 passed in 1.20s", "8 / 0 / 0"),
        ("1 failed, 8 passed, 2 skipped, 3 errors in 1.20s", "8 / 4 / 2"),
        ("5 skipped in 0.10s", "did not run"),
        ("ERROR: file or directory not found: tests/x", "did not run"),
    ],
)
def test_the_last_line_of_pytest_is_counted(line, cell):
    assert SCRIPT.summary(line) == cell


def test_a_row_replaces_its_own_and_no_other():
    page = "# V\n\n| row | core |\n|---|---|\n"
    page = SCRIPT.written(page, "oldest", ["1 / 0 / 0"])
    page = SCRIPT.written(page, "newest", ["2 / 0 / 0"])
    page = SCRIPT.written(page, "oldest", ["3 / 0 / 0"])
    assert page.splitlines()[4:] == ["| `oldest` | 3 / 0 / 0 |", "| `newest` | 2 / 0 / 0 |"]


def test_another_python_is_refused(monkeypatch):
    monkeypatch.setenv("PYTHON_3_12", "true")
    with pytest.raises(SystemExit, match=r"expected true to be Python 3\.12, got nothing"):
        SCRIPT.interpreter("3.12")


def test_every_row_of_the_matrix_passed():
    rows = rows_of_page()
    assert list(rows) == list(MATRIX["rows"])
    for name, row in rows.items():
        assert row["Python"] == MATRIX["rows"][name]["python"]
        for tests in MATRIX["tests"]:
            passed, failed, _ = row[tests].split(" / ")
            assert int(passed) > 500, (name, tests)
            assert failed == "0", (name, tests)


def test_the_lower_bounds_of_the_project_are_those_that_were_tested():
    lowest = pinned(SCRIPT.lowest(PROJECT, MATRIX["extras"]))
    row = rows_of_page()["oldest"]
    for name in set(MATRIX["shown"]) & set(lowest):
        assert re.fullmatch(re.escape(lowest[name]) + r"(\.0)*", row[name]), name


def test_the_pins_of_continuous_integration_are_those_that_were_tested():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = pinned(line for line in lines if "==" in line and not line.startswith("#"))
    row = rows_of_page()["ci"]
    assert {name: row[name] for name in MATRIX["shown"]} == {name: pins[name] for name in MATRIX["shown"]}
