"""`adamas train` and `Settings` take every option of a run without declaring it again."""

from dataclasses import dataclass, field, fields

import pytest

import adamas.experiment.training as training
from adamas.cli import main, options
from adamas.cli.options import run_options, takes_run_options
from adamas.experiment import Settings
from adamas.run.options import RunOptions, TrainingOptions, shown

GIVEN = {  # for each option a value other than its default: on the command line, and in Python
    "batch_size": ("32", 32),
    "delta": ("0.0001", 1e-4),
    "ema": ("0.5", 0.5),
    "epsilon": ("2.5", 2.5),
    "noise_multiplier": ("1.5", 1.5),
    "max_epsilon": ("4", 4.0),
    "epochs": ("2", 2),
    "steps": ("7", 7),
    "clip_norm": ("0.3", 0.3),
    "seed": ("11", 11),
    "noise": ("secure", "secure"),
    "engine": ("loop", "loop"),
    "micro_batch_size": ("8", 8),
    "sampling": ("shuffled", "shuffled"),
    "max_batch_size": ("64", 64),
    "accountant": ("rdp", "rdp"),
    "allow_large_delta": (None, True),
    "raw": (None, True),
    "progress": (None, True),
    "checkpoint_every": ("3", 3),
    "resume": (None, True),
}


class Reached(Exception):
    pass


def reached(monkeypatch, arguments):
    """Returns the arguments that `adamas train` passes to `train_and_save`."""
    seen = {}

    def train_and_save(settings, out, **others):
        seen.update(others | {"settings": settings})
        raise Reached

    monkeypatch.setattr(training, "train_and_save", train_and_save)
    with pytest.raises(Reached):
        main(["train", "--out", "folder", *arguments])
    return seen


@pytest.mark.parametrize("name", [one.name for one in run_options() if one.name != "data_ledger"])
def test_an_option_of_a_run_reaches_the_training(name, monkeypatch):
    text, value = GIVEN[name]
    flag = f"--{name.replace('_', '-')}"
    seen = reached(monkeypatch, [flag] if text is None else [flag, text])
    held = name in {one.name for one in fields(TrainingOptions)}
    assert (getattr(seen["settings"], name) if held else seen[name]) == value


def test_the_path_of_a_ledger_reaches_the_training(monkeypatch, tmp_path):
    path = tmp_path / "data.ledger"
    assert reached(monkeypatch, ["--data-ledger", str(path)])["data_ledger"] == path


def test_settings_declare_no_option_again():
    assert "__annotations__" not in vars(Settings) or not Settings.__annotations__
    names = [one.name for one in fields(Settings)]
    assert set(names) >= {one.name for one in fields(TrainingOptions)}
    assert len(names) == len(set(names))


def test_settings_hand_every_option_to_make_private():
    values = {name: value for name, (_, value) in GIVEN.items()}
    given = {one.name: values[one.name] for one in fields(TrainingOptions)} | {"seed": None}
    settings = Settings(data="digits", model="mlp", rule="sgd", **given)
    handed = settings.run_options()
    assert {name: handed[name] for name in given} == given
    assert handed.keys() <= {one.name for one in fields(RunOptions)}


def test_a_new_option_is_declared_in_one_place(monkeypatch):
    @dataclass(frozen=True)
    class More(RunOptions):
        warm_up: int = field(default=3, metadata=shown("Steps of a slow start."))

    monkeypatch.setattr(options, "RunOptions", More)

    @takes_run_options(batch_size=256, delta=1e-5)
    def command(**given):
        return given

    assert command.__signature__.parameters["warm_up"].default == 3
    assert command.__annotations__["warm_up"].__metadata__[0].help == "Steps of a slow start."


ORDER = """data model rule batch_size delta rule_options data_options model_options schedule ema epsilon
noise_multiplier max_epsilon epochs steps clip_norm seed noise engine micro_batch_size sampling max_batch_size
accountant allow_large_delta raw"""


def test_the_order_of_saved_settings_does_not_change():
    assert [one.name for one in fields(Settings)] == ORDER.split()
