"""Integrations hand every option of a run to `make_private`, or leave it out for a reason."""

import inspect
from dataclasses import fields

import pytest

pytest.importorskip("transformers")
pytest.importorskip("lightning")
pytest.importorskip("pandas")

import pandas as pd
from sklearn.base import clone

import adamas
from adamas.integrations.lightning import PrivateTraining
from adamas.integrations.transformers import Privacy
from adamas.run.options import RunOptions
from adamas.tabular import PrivateClassifier
from tests.support import lightning_fits, tiny_trainers
from tests.support.option_values import GIVEN

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Lightning gives advice by warnings

NAMES = [one.name for one in fields(RunOptions)]
TRAINER = "an argument of the trainer"
CHECKPOINTS = "checkpoints of the trainer hold the run"
LOADER = "taken from the loader"
ONE_FIT = "a fit is one call without files"
TEACHING = "a run with raw moments is for teaching, by make_private"

LEFT_OUT = {
    Privacy: {
        "batch_size": TRAINER,
        "micro_batch_size": TRAINER,
        "epochs": TRAINER,
        "steps": TRAINER,
        "collate_fn": TRAINER,
        "num_workers": TRAINER,
        "scheduler": TRAINER,
        "callbacks": TRAINER,
        "progress": TRAINER,
        "checkpoint": CHECKPOINTS,
        "checkpoint_every": CHECKPOINTS,
        "resume": CHECKPOINTS,
        "ema": "a callback of the trainer can average the weights",
        "raw": TEACHING,
        "distributed": "one process only",
    },
    PrivateTraining: {
        "epochs": TRAINER,
        "steps": TRAINER,
        "collate_fn": LOADER,
        "num_workers": LOADER,
        "scheduler": "the module configures it",
        "callbacks": TRAINER,
        "progress": TRAINER,
        "checkpoint": CHECKPOINTS,
        "checkpoint_every": CHECKPOINTS,
        "resume": CHECKPOINTS,
        "ema": "Lightning's WeightAveraging does it",
        "raw": TEACHING,
        "distributed": "one process only",
    },
    PrivateClassifier: {
        "noise_multiplier": "a budget pays for statistics and training",
        "max_epsilon": "a budget pays for statistics and training",
        "seed": "random_state",
        "engine": "the models are known, and fast on the default",
        "micro_batch_size": "rows of a table are small",
        "steps": "epochs",
        "sampling": "the plan of statistics and training is for Poisson sampling",
        "max_batch_size": "the plan of statistics and training is for Poisson sampling",
        "ema": "linear models with a rate that falls to 0 need none",
        "allow_large_delta": "the default is below 1/N for every N",
        "raw": TEACHING,
        "collate_fn": "rows are encoded before the training",
        "num_workers": "rows are in memory",
        "scheduler": "schedule",
        "checkpoint": ONE_FIT,
        "checkpoint_every": ONE_FIT,
        "resume": ONE_FIT,
        "distributed": ONE_FIT,
        "callbacks": ONE_FIT,
        "spent": "a data ledger counts earlier releases",
    },
}
NEEDED = {  # options that another one needs or excludes
    "noise_multiplier": {"epsilon": None},
    "max_epsilon": {"noise_multiplier": 1.0},
    "max_batch_size": {"sampling": "truncated-poisson"},
}


class Reached(Exception):
    pass


def caught(monkeypatch, module):
    """Makes a module's `make_private` stop with its options, which are returned in a dictionary."""
    options = {}

    def stop(model, rule, dataset, loss, **given):
        options.update(given)
        raise Reached

    monkeypatch.setattr(module, "make_private", stop)
    return options


def of_trainer(monkeypatch, folder, given):
    from adamas.integrations.transformers import trainer as module

    options = caught(monkeypatch, module)
    with pytest.raises(Reached):
        tiny_trainers.trainer(folder, privacy=given).train()
    return options


def of_lightning(monkeypatch, folder, given):
    options = caught(monkeypatch, adamas)
    private = PrivateTraining(**({"delta": 1e-3} | given))
    trainer = lightning_fits.pl.Trainer(
        strategy=private, max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False
    )
    with pytest.raises(Reached):
        trainer.fit(lightning_fits.Classifier(), lightning_fits.loader(), lightning_fits.public())
    return options


def of_classifier(monkeypatch, folder, given):
    from adamas.tabular import base

    options = caught(monkeypatch, base)
    model = PrivateClassifier(bounds=(0, 1), classes=[0, 1], **given)
    with pytest.raises(Reached):
        clone(model).fit(pd.DataFrame({"a": [0.0, 1.0] * 100}), [0, 1] * 100)
    return options


REACH = {Privacy: of_trainer, PrivateTraining: of_lightning, PrivateClassifier: of_classifier}
CASES = [(kind, name) for kind, left_out in LEFT_OUT.items() for name in NAMES if name not in left_out]


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_an_integration_takes_each_option_of_a_run_or_says_why_not(kind):
    taken = set(inspect.signature(kind).parameters)
    missing = [one for one in NAMES if one not in taken | LEFT_OUT[kind].keys()]
    assert not missing, f"{kind.__name__} neither takes {missing} nor has a reason to leave them out"
    assert not LEFT_OUT[kind].keys() & taken
    assert LEFT_OUT[kind].keys() <= set(NAMES)


@pytest.mark.parametrize(("kind", "name"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_an_option_reaches_the_run(kind, name, monkeypatch, tmp_path):
    others = {"spent": adamas.Ledger(), "data_ledger": tmp_path / "data.ledger"}
    value = others[name] if name in others else GIVEN[name][1]
    given = ({} if kind is PrivateClassifier else {"epsilon": 2.0}) | {name: value} | NEEDED.get(name, {})
    if "noise_multiplier" in given:
        given["epsilon"] = None
    if name == "data_ledger":
        adamas.DataLedger.create(value, epsilon=10.0, delta=1e-3)
    found = REACH[kind](monkeypatch, tmp_path, given)
    assert found[name] == value
