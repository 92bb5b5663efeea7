"""Tables in files as data sets of a training. Reading them needs the extra `tables`."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adamas.data import DATASETS, VALIDATION, Data

SUFFIXES = (".csv", ".parquet")
"""How the name of a table's file ends."""

_CHUNK = 4096  # rows that are predicted at once


def is_table(name: str) -> bool:
    """Tells whether the name of a data set is that of a file with a table."""
    return Path(name.removesuffix(VALIDATION)).suffix in SUFFIXES


def source(name: str) -> Callable[..., Data]:
    """Returns the function that makes a data set from its options.

    Args:
        name: A name in `DATASETS`, or a file.
    """
    if not is_table(name):
        return DATASETS[name]
    from adamas.tabular.files import load_table

    return partial(load_table, name)


def default_options(numbers: bool) -> dict[str, Any]:
    """Returns the defaults of a training on a table.

    Args:
        numbers: Whether the target is a number.
    """
    from adamas.tabular import defaults

    rate = defaults.NUMBERS_RATE if numbers else defaults.CLASSES_RATE
    return {
        "model": "linear",
        "rule": defaults.RULE,
        "lr": rate,
        "schedule": defaults.SCHEDULE,
        "epochs": defaults.EPOCHS,
    }


@torch.no_grad()
def table_scores(model: nn.Module, data: Data) -> dict[str, float | None]:
    """Scores a model on the test rows of a table, without noise: NOT PRIVATE for these rows."""
    from adamas.tabular.encoding import from_unit
    from adamas.tabular.scores import class_scores, number_scores, plain

    was_training = model.training
    model.eval()
    inputs, labels = data.test[:]
    outputs = torch.cat([model(inputs[i : i + _CHUNK]) for i in range(0, len(inputs), _CHUNK)]).double()
    model.train(was_training)
    if data.target_bounds is None:
        return plain(class_scores(outputs.softmax(1).numpy(), labels.numpy()))
    found, truth = (_whole(one, data.target_bounds, from_unit) for one in (outputs[:, 0], labels))
    return plain(number_scores(found, truth))


def _whole(values: Tensor, bounds: tuple[float, float], scale: Callable[..., np.ndarray]) -> np.ndarray:
    return scale(values.double().numpy(), *bounds)


def check_has_rows(data: Data) -> None:
    """Raises if there is no test row to score."""
    if not len(data.test):
        raise ValueError(
            f"Expected test rows with a known target in {data.name}, got none. Give another test file or "
            "fraction, or the right classes."
        )


def told(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns title and text of each score of a result, for the command line."""
    scores: Mapping[str, float | None] = result["test_scores"]
    rows, left_out = result["test_rows"], result.get("test_rows_left_out", 0)
    counted = f"{rows}" if not left_out else f"{rows} of {rows + left_out}: the others have no known label"
    return [*_scores(scores), ("scored rows", counted)]


def _scores(scores: Mapping[str, float | None]) -> list[tuple[str, str]]:

    def words(name: str, percent: bool = False) -> str:
        value = scores.get(name)
        return "-" if value is None else f"{value:.2%}" if percent else f"{value:.4g}"

    if "r2" in scores:
        return [
            ("test R2", words("r2")),
            ("test RMSE", f"{words('rmse')}  (the mean: {words('mean_rmse')})"),
            ("test MAE", words("mae")),
        ]
    return [
        ("test accuracy", f"{words('accuracy', True)}  (the majority: {words('majority_accuracy', True)})"),
        ("test AUC", words("auc")),
        ("test Brier", f"{words('brier')}  (the shares of the classes: {words('prior_brier')})"),
    ]
