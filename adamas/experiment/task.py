"""The task of a training: its data, its model before the first step, its loss and its accuracy."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from adamas._streams import Seed
from adamas.data import VALIDATION, Data, load, minilm_files
from adamas.experiment.activations import on_activations
from adamas.experiment.settings import Settings
from adamas.experiment.tables import is_table, source
from adamas.loading import Rows
from adamas.models import MODELS

PUBLISHED_WEIGHTS = {"minilm": minilm_files}
"""Models that start from published weights, with the function that fetches these."""


def task(settings: Settings, load: Callable[..., Data] = load) -> tuple[nn.Module, nn.Module, Data]:
    """Loads the data and makes the model that the settings name.

    Args:
        settings: Which model and data.
        load: Takes the name of a data set and its options, as `adamas.data.load`.

    Returns:
        The whole model before its first step, the part of it that trains, and the inputs of this part: the
        data, or their activations if a frozen part comes first.
    """
    name = settings.data.removesuffix(VALIDATION)
    data = source(name)(**settings.data_options) if is_table(name) else load(name, **settings.data_options)
    whole = initial_model(settings, data)
    model, data = on_activations(whole, data)
    if name != settings.data:
        data = data.with_validation()
        data = data.with_known_test_labels() if is_table(name) else data
    return whole, model, data


def initial_model(settings: Settings, data: Data) -> nn.Module:
    """Makes the model that the settings describe, before its first step."""
    return seeded_model(settings.model, settings.model_options, data, settings.seed)


def seeded_model(name: str, options: Mapping[str, Any], data: Data, seed: int | None) -> nn.Module:
    """Makes a model with its initial weights, which are public.

    Args:
        name: A name in `MODELS`.
        options: Arguments of the model; weights of `PUBLISHED_WEIGHTS` are added.
        data: The data set, which decides the shapes.
        seed: Seed of the run; None takes weights from torch's global generator.
    """
    options = dict(options)
    if name in PUBLISHED_WEIGHTS and "weights" not in options:
        options["weights"] = PUBLISHED_WEIGHTS[name]()
    with torch.random.fork_rng():
        if seed is not None:
            torch.manual_seed(int(Seed(seed).words("initial weights", count=1)[0]))
        return MODELS[name](data.input_shape, data.classes, **options)


def cross_entropy(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """Computes one loss per example of a classifier."""
    *inputs, labels = batch
    return F.cross_entropy(model(*_in_full(inputs)), labels, reduction="none")


def squared_error(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """Computes one loss per example of a model with one output."""
    *inputs, labels = batch
    errors: Tensor = model(*_in_full(inputs))[:, 0] - labels
    return errors.square()


def _in_full(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Converts activations, which are stored in half precision."""
    return [x.float() if x.dtype == torch.half else x for x in inputs]


@torch.no_grad()
def accuracy(model: nn.Module, test: TensorDataset | Rows) -> float:
    """Measures the share of right answers on test data, in evaluation mode."""
    was_training = model.training
    model.eval()
    right = 0
    for start in range(0, len(test), 1000):
        *inputs, labels = test[start : start + 1000]
        right += int((model(*_in_full(inputs)).argmax(1) == labels).sum())
    model.train(was_training)
    return right / len(test)
