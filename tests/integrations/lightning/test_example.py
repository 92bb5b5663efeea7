"""The examples of training with Lightning work as they stand: the script, the page and the docstring."""

import doctest
import importlib
import inspect
import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("lightning")
pytest.importorskip("sklearn")

EXAMPLE = Path(__file__).parents[3] / "examples" / "lightning" / "train.py"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_the_example_trains_and_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FOLDER", str(tmp_path))
    monkeypatch.setenv("EPOCHS", "4")
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    found = re.search(r"epsilon (\d\.\d+), best accuracy (\d+\.\d)%", text(capsys))
    epsilon, accuracy = map(float, found.groups())
    assert 2.99 < epsilon <= 3.0
    assert accuracy > 50
    monkeypatch.setenv("CHECKPOINT", str(tmp_path / "last.ckpt"))
    runpy.run_path(str(EXAMPLE), run_name="__main__")  # all steps are done
    assert f"epsilon {epsilon}," in text(capsys)


def text(capsys):
    return capsys.readouterr().out


def test_the_training_on_the_page_works(tmp_path, monkeypatch, capsys):
    page = EXAMPLE.parents[2] / "docs" / "lightning.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(block, {"__name__": "page"})
    steps, epsilon = text(capsys).splitlines()[-1].split()
    assert int(steps) == 5 * 6
    assert 2.99 < float(epsilon) <= 3.0
    assert {file.name for file in tmp_path.glob("checkpoints/*")} >= {"adamas_runs", "last.ckpt"}


def test_the_docstring_is_an_example_and_explains_every_argument():
    strategy = importlib.import_module("adamas.integrations.lightning.strategy")
    done = doctest.testmod(strategy)
    assert done.attempted >= 7
    assert done.failed == 0
    arguments = inspect.signature(strategy.PrivateTraining).parameters
    assert all(f" {name}: " in strategy.PrivateTraining.__doc__ for name in arguments)
