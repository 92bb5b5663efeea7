"""docs/rules.md lists every rule, and its numbers are those of the stored results."""

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from adamas.rules import RULES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/rules.md").read_text(encoding="utf-8")

# Column of the page -> experiment and column of its results.
COLUMNS = {
    "MNIST, ε = 0.785": ("macadam/table1", "1.0"),
    "CIFAR-10, ε = 1.101": ("macadam/table2", "1.1"),
    "CIFAR-10, ε = 3": ("adamw/table1", "3"),
    "text, ε = 3": ("adamw/table2", "pretrained"),
    "CIFAR-10, ε = 8": ("microadam/table4", "0.55"),
}
# Experiment -> rule -> row of its results, where the names differ.
CORRECTED = {
    "adam-bc": "adam-bc-auto",
    "macadam": "macadam-corrected",
    "macadam-bc": "macadam-bc-corrected",
}
ROWS = {
    "macadam/table1": CORRECTED,
    "macadam/table2": CORRECTED,
    "microadam/table4": {"micro-adam": "micro-adam-4-bit"},
}


def table(heading: str) -> list[dict[str, str]]:
    """Reads the table whose first column has this heading, one dict per row."""
    start = PAGE.index(f"| {heading} |")
    lines = PAGE[start:].split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def results(experiment: str) -> list[dict[str, Any]]:
    lines = (ROOT / "experiments" / experiment / "results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def runs(experiment: str, column: str, row: str) -> list[dict[str, Any]]:
    return [run for run in results(experiment) if (run["row"], run["column"]) == (row, column)]


def accuracy(experiment: str, column: str, row: str) -> float:
    """Returns the mean test accuracy in percent."""
    return 100 * statistics.fmean(run["test_accuracy"] for run in runs(experiment, column, row))


def published(value: float, digits: int = 1) -> float:
    """Returns what compares equal to the value rounded to `digits` decimals."""
    return pytest.approx(value, rel=0, abs=0.5 * 10**-digits + 1e-9)


ENTRIES = {entry["rule"].strip("`"): entry for entry in table("rule")}


def test_every_rule_has_one_row():
    assert set(ENTRIES) == set(RULES)
    assert [entry["rule"] for entry in table("rule")] == [f"`{name}`" for name in RULES]
    for entry in ENTRIES.values():
        assert re.fullmatch(r"[A-Z`].*\.", entry["in one sentence"])


@pytest.mark.parametrize("heading", COLUMNS)
@pytest.mark.parametrize("name", RULES)
def test_accuracies_match_the_results(name, heading):
    experiment, column = COLUMNS[heading]
    row = ROWS.get(experiment, {}).get(name, name)
    cell = ENTRIES[name][heading].split(" ")[0]
    if cell == "–":
        assert not runs(experiment, column, row)
    else:
        assert float(cell) == published(accuracy(experiment, column, row))


@pytest.mark.parametrize("name", RULES)
def test_bytes_of_state_match_the_results(name):
    cell = ENTRIES[name]["bytes of state"].split(";")[0]
    for experiment, column in COLUMNS.values():
        for run in runs(experiment, column, ROWS.get(experiment, {}).get(name, name)):
            assert float(cell) == published(run["state_bytes_per_parameter"], digits=2)


def test_epsilons_match_the_results():
    for heading, (experiment, column) in COLUMNS.items():
        (epsilon,) = re.findall(r"ε = ([\d.]+)", heading)
        found = runs(experiment, column, "sgd")[0]["epsilon"]["pld"]
        step = 10.0 ** -len(epsilon.partition(".")[2])
        assert float(epsilon) - step <= found <= float(epsilon)  # rounded up


@pytest.mark.parametrize(
    ("text", "experiment", "column", "row", "value"),
    [
        ("has 60.7 % at ε = 1.11", "best/cifar10", "1.11", "adam-bc", 60.7),
        ("has 53.4 % at ε = 1.101", "macadam/table2", "1.1", "adam-bc-auto", 53.4),
        ("86.9 with twenty times that\nrate", "macadam/table1", "1.0", "adaclip-2e-2", 86.9),
        ("93.0 with its automatic floor", "macadam/table1", "0.5", "adam-bc-auto", 93.0),
        ("87.3 with the fixed floor", "macadam/table1", "0.5", "adam-bc", 87.3),
        ("80.0 and 80.5", "adambc/figure5", "6e-3", "adam", 80.0),
        ("80.0 and 80.5", "adambc/figure5", "3e-3", "floor-1e-8", 80.5),
    ],
)
def test_numbers_in_the_text_match_the_results(text, experiment, column, row, value):
    assert text in PAGE
    assert value == published(accuracy(experiment, column, row))


def test_differences_in_the_text_match_the_results():
    def best(prefix, column):
        found = [run for run in results("best/cifar10-trials") if run["column"] == column]
        return 100 * max(run["test_accuracy"] for run in found if run["row"].startswith(prefix))

    assert "0.4, 0.2 and 1.5 points behind `adam-bc` at ε = 10.40,\n   2.45 and 0.66" in PAGE
    for column, behind in [("10.40", 0.4), ("2.45", 0.2), ("0.66", 1.5)]:
        assert behind == published(best("adam-bc-", column) - best("sgd-", column))

    adam = [100 * run["test_accuracy"] for run in results("adamw/table1-trials") if run["row"] == "adam"]
    assert "between 34.1 and 52.8 %" in PAGE
    assert (published(min(adam)), published(max(adam))) == (34.1, 52.8)

    assert "it gains 9.0 points" in PAGE
    gain = accuracy("microadam/table4", "0.55", "micro-adam-4-bit")
    assert published(gain - accuracy("microadam/table4", "0.5", "micro-adam-4-bit")) == 9.0


def test_every_rule_is_in_the_references():
    start = PAGE.index("## References")
    for name in RULES:
        assert f"`{name}`" in PAGE[start:]
