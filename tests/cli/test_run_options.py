"""Commands and settings take the options of a run from its fields, without declaring any again."""

import inspect
import json
from dataclasses import dataclass, field, fields

import pytest

import adamas.cli.federated
import adamas.experiment.sweep
import adamas.experiment.training as training
from adamas.cli import budgets, main
from adamas.cli.options import run_options, takes_run_options
from adamas.cli.training import train
from adamas.experiment import Settings
from adamas.federated import FederatedSettings, make_task
from adamas.federated.training import make_client
from adamas.run.options import HELP, RunOptions, SharedOptions, TrainingOptions, shown
from tests.support.federated_runs import blobs
from tests.support.option_values import GIVEN


class Reached(Exception):
    pass


def stopped_at(monkeypatch, module, name, arguments):
    """Runs a command until it calls a function, and returns the arguments of that call."""
    seen = []

    def stop(*given, **others):
        seen.append((given, others))
        raise Reached

    monkeypatch.setattr(module, name, stop)
    with pytest.raises(Reached):
        main(arguments)
    return seen[0]


def trained(monkeypatch, arguments):
    """Returns the settings and the other options that `adamas train` trains with."""
    (settings, _), others = stopped_at(
        monkeypatch, training, "train_and_save", ["train", "--out", "folder", *arguments]
    )
    return settings, others


def swept(monkeypatch, arguments):
    """Returns the settings that `adamas sweep` tries values with."""
    required = [] if "--epsilon" in arguments else ["--epsilon", "3"]
    (settings, *_), _ = stopped_at(
        monkeypatch, adamas.experiment.sweep, "sweep", ["sweep", "--try", "lr=1,2", *required, *arguments]
    )
    return settings


def federated(monkeypatch, arguments):
    """Returns the settings that `adamas federated run` trains with."""
    required = ["--clients", "3", "--rounds", "2", "--local-steps", "1", "--data", "digits", "--model", "mlp"]
    if not {"--epsilon", "--noise-multiplier"} & set(arguments):
        required += ["--epsilon", "3"]
    (settings, *_), _ = stopped_at(
        monkeypatch, adamas.cli.federated, "_train", ["federated", "run", *required, *arguments]
    )
    return settings


def flags(name):
    text, _ = GIVEN[name]
    flag = f"--{name.replace('_', '-')}"
    return [flag] if text is None else [flag, text]


def names(kind):
    return [one.name for one in run_options(kind)]


@pytest.mark.parametrize("name", [name for name in names(RunOptions) if name != "data_ledger"])
def test_an_option_of_a_run_reaches_the_training(name, monkeypatch):
    settings, others = trained(monkeypatch, flags(name))
    held = name in names(TrainingOptions)
    assert (getattr(settings, name) if held else others[name]) == GIVEN[name][1]


def test_the_path_of_a_ledger_reaches_the_training(monkeypatch, tmp_path):
    path = tmp_path / "data.ledger"
    assert trained(monkeypatch, ["--data-ledger", str(path)])[1]["data_ledger"] == path


@pytest.mark.parametrize("name", [one for one in names(TrainingOptions) if one not in budgets.NOT_OF_A_SWEEP])
def test_an_option_of_a_training_reaches_the_sweep(name, monkeypatch):
    assert getattr(swept(monkeypatch, flags(name)), name) == GIVEN[name][1]


@pytest.mark.parametrize("name", names(SharedOptions))
def test_an_option_that_is_shared_reaches_the_federated_training(name, monkeypatch):
    assert getattr(federated(monkeypatch, flags(name)), name) == GIVEN[name][1]


# --- what a command leaves out --------------------------------------------------------------------------

ONE_RUN = "about one run, and a command that makes several decides it itself"
SERVER = "a federated training has rounds and local steps, which the server counts"
WIRE = "clients have no such option in a message"

LEFT_OUT = {  # the command, and why it lacks an option
    "train": (train, {}),
    "sweep": (
        budgets.sweep,
        budgets.NOT_OF_A_SWEEP | dict.fromkeys(["progress", "checkpoint_every", "resume"], ONE_RUN),
    ),
    "federated run": (
        adamas.cli.federated.run,
        {
            "max_epsilon": SERVER,
            "epochs": SERVER,
            "steps": SERVER,
            "ema": "the server averages the parameters of clients",
            "noise": WIRE,
            "sampling": "the accounting of a federated training is for Poisson sampling",
            "max_batch_size": "the accounting of a federated training is for Poisson sampling",
            "allow_large_delta": "decided by the unit",
            "raw": "a client has no moments without noise to show",
            "data_ledger": "a node has a ledger of its own, in its configuration",
            "progress": ONE_RUN,
            "checkpoint_every": "each round is saved",
            "resume": "a begun training in --out is continued",
        },
    ),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_command_takes_each_option_of_a_run_or_says_why_not(name):
    command, left_out = LEFT_OUT[name]
    taken = set(inspect.signature(command).parameters)
    missing = [one for one in names(RunOptions) if one not in taken | left_out.keys()]
    assert not missing, f"`adamas {name}` neither takes {missing} nor has a reason to leave them out"
    assert not left_out.keys() & taken
    assert left_out.keys() <= set(names(RunOptions))
    assert all(left_out.values())


@pytest.mark.parametrize(
    ("settings", "options"), [(Settings, TrainingOptions), (FederatedSettings, SharedOptions)]
)
def test_settings_declare_no_option_again(settings, options):
    declared = vars(settings).get("__annotations__", {}).keys()
    assert not declared & {one.name for one in fields(RunOptions)}
    found = {one.name: one for one in fields(settings)}
    for one in fields(options):
        assert found[one.name].metadata[HELP] == one.metadata[HELP]
        assert found[one.name].default == one.default


def test_settings_hand_every_option_to_make_private():
    values = {name: value for name, (_, value) in GIVEN.items()}
    given = {one.name: values[one.name] for one in fields(TrainingOptions)} | {"seed": None}
    settings = Settings(data="digits", model="mlp", rule="sgd", **given)
    handed = settings.run_options()
    assert {name: handed[name] for name in given} == given
    assert handed.keys() <= {one.name for one in fields(RunOptions)}


@pytest.mark.parametrize("kind", [SharedOptions, TrainingOptions, RunOptions])
def test_a_new_option_is_declared_in_one_place(kind):
    @dataclass(frozen=True, kw_only=True)
    class More(kind):
        warm_up: int = field(default=3, metadata=shown("Steps of a slow start."))

    @takes_run_options(More, batch_size=256, delta=1e-5)
    def command(**given):
        return given

    assert command.__signature__.parameters["warm_up"].default == 3
    assert command.__annotations__["warm_up"].__metadata__[0].help == "Steps of a slow start."


def test_a_command_may_take_a_few_options_with_a_help_and_a_default_of_its_own():
    @takes_run_options(only=["engine", "seed"], texts={"seed": "Another seed."}, engine="loop")
    def command(seeds: int = 1, **given):
        return given

    parameters = command.__signature__.parameters
    assert list(parameters) == ["seeds", "seed", "engine"]
    assert parameters["engine"].default == "loop"
    assert parameters["seed"].annotation.__metadata__[0].help == "Another seed."


def test_a_client_hands_every_shared_option_to_its_runs():
    values = {name: value for name, (_, value) in GIVEN.items() if name in names(SharedOptions)}
    values |= {"epsilon": None, "noise_multiplier": 1.5}
    settings = blobs(**values)
    client = make_client(settings, make_task(settings), 0, noise_multiplier=1.5)
    client.seed = values["seed"]
    handed = client._options(steps=1)
    assert {name: handed[name] for name in values if name != "epsilon"} == {
        name: value for name, value in values.items() if name != "epsilon"
    }


ORDER = """data model rule batch_size delta rule_options data_options model_options schedule epsilon
noise_multiplier clip_norm seed engine micro_batch_size accountant max_epsilon epochs steps noise sampling
max_batch_size ema allow_large_delta raw"""


def test_the_order_of_saved_settings_does_not_change():
    assert [one.name for one in fields(Settings)] == ORDER.split()


IN_MESSAGES = """accountant algorithm algorithm_options batch_size clients clip_norm count_on_participation
data data_options delta dirichlet engine epsilon equal_sizes least_examples local_steps micro_batch_size model
model_options noise_multiplier participation rounds seed task unit"""


def test_federated_settings_have_the_same_names_in_messages():
    """A node of another version would refuse a name that it does not know."""
    settings = FederatedSettings(
        task="module", clients=2, rounds=1, local_steps=1, batch_size=4, delta=1e-5, epsilon=1.0
    )
    assert list(json.loads(settings.to_json())) == IN_MESSAGES.split()
