"""The settings of a training: names of data, model and rule, and the options of the run."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from adamas import _validate
from adamas._streams import Seed
from adamas.data import DATASETS, VALIDATION
from adamas.experiment.tables import is_table, source
from adamas.models import MODELS
from adamas.rules import RULES
from adamas.run.options import TrainingOptions
from adamas.run.schedules import SCHEDULES, scheduler_of
from adamas.secure_noise import NOISES, SecureNoise

MODEL, LEDGER, RESULT = "model.safetensors", "ledger.json", "result.json"
"""The files of a finished run in a folder."""

DIAGNOSTICS = "diagnostics.jsonl"
"""The file of diagnostics in a folder."""

CHECKPOINT, SETTINGS = "checkpoint.safetensors", "settings.json"
"""The checkpoint of a run in a folder, and the settings that it was begun with."""

JOURNAL = CHECKPOINT + ".journal"
"""The journal of that checkpoint."""

_POSITIONAL = ("params", "input_shape", "classes")  # given by the caller, not by the user


@dataclass(frozen=True)
class _Task:
    data: str
    model: str
    rule: str
    batch_size: int  # these two are options of the run; here they have their place in the files
    delta: float
    rule_options: dict[str, Any] = field(default_factory=dict)
    data_options: dict[str, Any] = field(default_factory=dict)
    model_options: dict[str, Any] = field(default_factory=dict)
    schedule: str = "constant"


@dataclass(frozen=True)
class Settings(TrainingOptions, _Task):
    """What to train, on what, and how.

    The options of a run, such as `epsilon`, are those of `make_private`, and are inherited.

    Attributes:
        data: A name in `adamas.data.DATASETS`, or a table's file that ends in .csv or .parquet;
            NAME/validation holds training examples out.
        model: A name in `adamas.models.MODELS`.
        rule: A name in `adamas.rules.RULES`.
        rule_options: Arguments of the rule.
        data_options: Arguments of the data set.
        model_options: Arguments of the model.
        schedule: A name in `adamas.run.schedules.SCHEDULES`.
    """

    def __post_init__(self) -> None:
        name = self.data.removesuffix(VALIDATION)
        if not is_table(name):
            _validate.one_of(DATASETS, data=name)
        _validate.one_of(MODELS, model=self.model)
        _validate.one_of(RULES, rule=self.rule)
        for factory, options in (
            (source(name), "data_options"),
            (MODELS[self.model], "model_options"),
            (RULES[self.rule], "rule_options"),
        ):
            check_option_names(options, getattr(self, options), factory)
        _validate.one_of(SCHEDULES, schedule=self.schedule)
        _validate.one_of(NOISES, noise=self.noise)
        Seed(self.seed, secure=self.noise == SecureNoise.name)

    def run_options(self) -> dict[str, Any]:
        """Returns the options of the run, for `make_private`."""
        options = {one.name: getattr(self, one.name) for one in fields(TrainingOptions)}
        return options | {"scheduler": scheduler_of(self.schedule)}


def check_option_names(name: str, options: Mapping[str, Any], factory: Callable[..., Any]) -> None:
    """Raises for an option that a data set, model or rule does not have.

    Args:
        name: The setting, for the message.
        options: The options by name.
        factory: Takes them as arguments.
    """
    positional = () if name == "data_options" else _POSITIONAL
    known = [option for option in inspect.signature(factory).parameters if option not in positional]
    for option in options:
        if option not in known:
            raise ValueError(f"Expected {name} among {known}, got {option!r}.")
