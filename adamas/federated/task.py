"""What a federated training trains, and on whose data: of the package, or a module of the user's."""

import copy
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from adamas.data import Data, load
from adamas.engines import Loss
from adamas.experiment import training as experiment
from adamas.federated.blocks import Blocks
from adamas.federated.partition import dirichlet_partition
from adamas.federated.settings import FederatedSettings

_NEEDED = ("make_model", "client_data", "loss")


class Task(Protocol):
    """What clients and server need to know of a task.

    A Python module is one, if it has the functions `make_model`, `client_data` and `loss`; `test_data` and
    `make_blocks` are optional there.
    """

    def make_model(self) -> nn.Module:
        """A model with its initial parameters, the same everywhere."""

    def client_data(self, client: int, clients: int) -> Dataset[Any]:
        """The examples of one of so many clients; called on the client's machine alone."""

    @property
    def loss(self) -> Loss:
        """A function of model and batch: one loss per example."""

    def test_data(self) -> TensorDataset | None:
        """Public examples that the server evaluates a classifier on, inputs and labels; None for none."""

    def make_blocks(self, model: nn.Module) -> Blocks | None:
        """Which parameters share a second moment; None leaves it to the algorithm."""

    def label_counts(self) -> list[list[int]] | None:
        """How many examples of each class each client has, where that is public; None where it is not."""


def make_task(settings: FederatedSettings) -> Task:
    """The task that the settings name.

    Raises:
        ValueError: If the module cannot be imported or lacks a function.
    """
    if not settings.task:
        return DataTask(settings)
    try:
        module = importlib.import_module(settings.task)
    except ImportError as error:
        raise ValueError(
            f"Expected task={settings.task!r} to be a Python module that can be imported: {error}."
        ) from error
    missing = [name for name in _NEEDED if not callable(getattr(module, name, None))]
    if missing:
        raise ValueError(f"Expected task={settings.task!r} to define {', '.join(missing)}.")
    return ModuleTask(module)


class DataTask:
    """A data set of the package, spread over clients, and a model of the package.

    Every client holds the whole data set and takes its part: this is for simulations.

    Args:
        settings: Names of data and model, the clients and the spread.
        load: Takes the name of a data set and its options, as `adamas.data.load`.
    """

    def __init__(self, settings: FederatedSettings, load: Callable[..., Data] = load) -> None:
        _, self._model, self._data = experiment.task(settings.central(), load)
        self._parts = dirichlet_partition(
            self._labels(),
            clients=settings.clients,
            alpha=settings.dirichlet,
            seed=settings.public_seed,
            least=settings.least_examples or settings.batch_size,
            equal_sizes=settings.equal_sizes,
        )

    @property
    def loss(self) -> Loss:
        """Cross-entropy."""
        return experiment.cross_entropy

    def make_model(self) -> nn.Module:
        """See `Task.make_model`."""
        return copy.deepcopy(self._model)

    def client_data(self, client: int, clients: int) -> Dataset[Any]:
        """See `Task.client_data`."""
        if clients != len(self._parts):
            raise ValueError(f"Expected clients={len(self._parts)} as in the settings, got {clients}.")
        return TensorDataset(*self._data.train[torch.from_numpy(self._parts[client])])

    def test_data(self) -> TensorDataset:
        """See `Task.test_data`."""
        return self._data.test

    def make_blocks(self, model: nn.Module) -> None:
        """See `Task.make_blocks`."""

    def label_counts(self) -> list[list[int]]:
        """See `Task.label_counts`."""
        labels = self._labels()
        return [np.bincount(labels[part], minlength=self._data.classes).tolist() for part in self._parts]

    def _labels(self) -> np.ndarray:
        return self._data.train.tensors[-1].numpy()


class ModuleTask:
    """A module of the user's as a task.

    Args:
        module: See `Task`.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    @property
    def loss(self) -> Loss:
        """See `Task.loss`."""
        loss: Loss = self._module.loss
        return loss

    def make_model(self) -> nn.Module:
        """See `Task.make_model`."""
        model: nn.Module = self._module.make_model()
        return model

    def client_data(self, client: int, clients: int) -> Dataset[Any]:
        """See `Task.client_data`."""
        data: Dataset[Any] = self._module.client_data(client, clients)
        return data

    def test_data(self) -> TensorDataset | None:
        """See `Task.test_data`."""
        make = getattr(self._module, "test_data", None)
        return make() if make else None

    def make_blocks(self, model: nn.Module) -> Blocks | None:
        """See `Task.make_blocks`."""
        make = getattr(self._module, "make_blocks", None)
        return make(model) if make else None

    def label_counts(self) -> None:
        """See `Task.label_counts`."""
