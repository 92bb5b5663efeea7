"""`adamas check` on the command line."""

import json

import pytest

from adamas.check import FAIL
from tests.support.checked_runs import NAMES
from tests.support.command_line import call
from tests.support.user_modules import user_modules

MODULE = """
    import torch, adamas, helper_of_the_check
    from torch.nn import functional as F

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    def make_run(noise_multiplier=1.0):
        torch.manual_seed(0)
        model = torch.nn.Linear(6, 20)
        data = torch.utils.data.TensorDataset(torch.randn(200, 6), torch.ones(200).long())
        return adamas.make_private(
            model, adamas.rules.AdamBC(model.parameters()), data, loss, batch_size=20, steps=20,
            noise_multiplier=noise_multiplier, delta=1e-5, seed=0, accountant="rdp")

    def noiseless():
        return make_run(0.0)

    nothing = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    modules = {
        "module_of_the_check": MODULE,
        "helper_of_the_check": "",
        "broken_of_the_check": "import a_module_that_is_not_there",
    }
    with user_modules(tmp_path, monkeypatch, **modules):
        yield tmp_path


@pytest.mark.slow
def test_the_command_prints_a_table_and_json(capsys, folder):
    code, printed, _ = call(capsys, "check", "module_of_the_check:make_run", "--examples", "4")
    assert code == 0
    for name in NAMES:
        assert name in printed
    code, printed, _ = call(capsys, "check", "module_of_the_check:noiseless", "--json", "--examples", "3")
    assert code == 1
    answer = json.loads(printed)
    assert answer["verdict"] == FAIL
    assert [row["name"] for row in answer["rows"] if row["verdict"] == FAIL] == ["noise variance as stated"]


@pytest.mark.parametrize("command", ["check", "audit"])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("module_of_the_check", "MODULE:FUNCTION"),
        ("module_of_the_check.py:make_run", "MODULE:FUNCTION"),
        ("not_there_of_the_check:make_run", "'not_there_of_the_check'"),
        ("broken_of_the_check:make_run", "a_module_that_is_not_there"),
        ("module_of_the_check:make", "'make'"),
        ("module_of_the_check:nothing", "'nothing'"),
        ("helper_of_the_check:__doc__", "'__doc__'"),
    ],
)
def test_a_function_that_cannot_be_loaded_gives_one_line_and_exit_code_2(
    capsys, folder, command, function, message
):
    code, printed, error = call(capsys, command, function)
    assert code == 2
    assert printed == ""
    assert error.count("\n") == 1
    assert message in error


@pytest.mark.slow
def test_the_command_shows_progress_on_request(capsys, folder):
    code, _, error = call(capsys, "check", "module_of_the_check:make_run", "--progress", "--examples", "2")
    assert code == 0
    assert "checks" in error
