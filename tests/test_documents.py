"""The code in the documents runs as it stands there."""

import re
from pathlib import Path

import pytest
import torch

import adamas
from adamas.federated.settings import FederatedSettings
from adamas.federated.task import make_task
from adamas.federated.training import train_in_process
from adamas.rules.base import Rule

ROOT = Path(__file__).parent.parent


def python_blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", ["docs/pitfalls.md", "docs/reliability.md"])
def test_the_tests_that_a_page_names_exist(page):
    named = re.findall(r"`(test_\w+\.py)(?:::(test_\w+))?`", (ROOT / page).read_text())
    assert len(named) > 15
    for file, test in named:
        text = (ROOT / "tests" / file).read_text()
        assert not test or f"def {test}(" in text, f"{page} names {file}::{test}"


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
