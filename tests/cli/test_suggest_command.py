"""`adamas suggest`: the same numbers as the function, as text and as JSON, and a command that trains."""

import json

import pytest

import adamas
from adamas.cli import main

SIZES = "--dataset-size 1438 --parameters 7510 --epsilon 3 --epochs 2"


def answered(command, capsys, code=0):
    with pytest.raises(SystemExit) as stop:
        main(command.split())
    assert stop.value.code == code
    return capsys.readouterr()


def test_json_is_what_the_function_returns(capsys):
    found = json.loads(answered(f"suggest {SIZES} --json", capsys).out)
    assert found == json.loads(
        json.dumps(adamas.suggest(n=1438, parameters=7510, epsilon=3.0, epochs=2).as_dict())
    )


def test_the_text_has_settings_reasons_and_lines_to_copy(capsys):
    made = adamas.suggest(n=1438, parameters=7510, epsilon=3.0, epochs=2)
    text = answered(f"suggest {SIZES}", capsys).out
    assert str(made) in text
    for reason in made.reasons:
        assert reason in text
    assert f"lr={made.lr!r}" in text
    assert made.command() in text


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["", " --memory 30040"])
def test_the_printed_command_trains_within_the_budget(memory, capsys, tmp_path):
    pytest.importorskip("sklearn")
    text = answered(f"suggest {SIZES}{memory}", capsys).out
    (command,) = (line.strip() for line in text.splitlines() if line.strip().startswith("adamas train"))
    command = command.removeprefix("adamas ").replace("DATA", "digits").replace("MODEL", "mlp")
    answered(f"{command} --model-option hidden=100 --out {tmp_path / 'run'}", capsys)
    result = json.loads((tmp_path / "run/result.json").read_text())
    found = json.loads(answered(f"suggest {SIZES}{memory} --json", capsys).out)
    assert 2.9 < result["epsilon"] <= 3
    for name in ("noise_multiplier", "steps"):
        assert result[name] == found[name]
    assert result["settings"]["rule_options"] == {"lr": found["lr"], **found["rule_options"]}


def test_a_refusal_is_one_line(capsys):
    error = answered("suggest --dataset-size 60000 --parameters 10 --epsilon 3 --hours 1", capsys, code=2).err
    assert "examples_per_second" in error
    assert len(error.splitlines()) == 1
