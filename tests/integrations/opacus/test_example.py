"""The example of a port: both scripts run, and few lines differ."""

import difflib
import re
import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "opacus_port"
pytestmark = pytest.mark.slow


def printed(name, capsys):
    runpy.run_path(str(EXAMPLE / name), run_name="__main__")
    text = capsys.readouterr().out
    values = re.findall(r"^(\w[\w ]*) ([\d.]+)$", text, re.MULTILINE)
    return text, {word: float(number) for word, number in values}


def test_the_script_after_the_port_trains_within_its_budget(capsys):
    pytest.importorskip("sklearn")
    text, values = printed("after.py", capsys)
    assert values["accuracy"] > 0.7
    assert 7.9 < values["epsilon"] <= 8.0
    assert text.count("epsilon so far") == 5


@pytest.mark.filterwarnings("ignore")
def test_the_script_before_the_port_runs_with_opacus(capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("opacus")
    _, values = printed("before.py", capsys)
    assert values["accuracy"] > 0.7
    assert 7.9 < values["epsilon"] <= 8.0


def test_few_lines_differ():
    before, after = ((EXAMPLE / name).read_text().splitlines() for name in ("before.py", "after.py"))
    changed = [line for line in difflib.ndiff(before, after) if line[0] in "+-" and line[1:].strip()]
    added = [line for line in changed if line[0] == "+"]
    assert len(changed) <= 10
    assert len(added) <= 3  # docstring, import, what each epoch prints
    loop = [line for line in added if "model(" in line or "loss" in line or "optimizer" in line]
    assert not loop
