"""Tasks: the model, the clients' data and the loss of a training, of the package or of a user's module."""

import copy
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from adamas.data import VALIDATION, Data, load
from adamas.engines import Loss
from adamas.experiment.activations import on_activations
from adamas.experiment.task import cross_entropy, seeded_model
from adamas.federated.blocks import Blocks
from adamas.federated.partition import dirichlet_partition
from adamas.federated.settings import FederatedSettings

_NEEDED = ("make_model", "client_data", "loss")


class Task(Protocol):
    """The model, the clients' data and the loss of a training.

    A Python module is a task if it has the functions `make_model`, `client_data` and `loss`. There
    `test_data` and `make_blocks` are optional.
    """

    def make_model(self) -> nn.Module:
        """Makes a model with its initial parameters, which are the same everywhere."""

    def client_data(self, client: int, clients: int) -> Dataset[Any]:
        """Returns the examples of a client, of `clients` in all; called on the client's machine only."""

    @property
    def loss(self) -> Loss:
        """A function of model and batch: one loss per example."""

    def test_data(self) -> TensorDataset | None:
        """Returns public inputs and labels, on which the server evaluates a classifier; None for none."""

    def make_blocks(self, model: nn.Module) -> Blocks | None:
        """Partitions the parameters that share a second moment; None leaves it to the algorithm."""

    def label_counts(self) -> list[list[int]] | None:
        """Counts each client's examples of each class; None if that is not public."""


def make_task(settings: FederatedSettings) -> Task:
    """Makes the task that the settings name.

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
    """A data set of the package, partitioned over clients, and a model of the package.

    Every client holds the whole data set and takes its part: this is for simulations.

    Args:
        settings: Names of data and model, and the partition.
        load: Loads a data set by its name and options, as `adamas.data.load`.
    """

    def __init__(self, settings: FederatedSettings, load: Callable[..., Data] = load) -> None:
        name = settings.data.removesuffix(VALIDATION)
        data = load(name, **settings.data_options)
        # With a seed, the model of a central training with the same seed.
        model = seeded_model(settings.model, settings.model_options, data, settings.public_seed)
        self._model, data = on_activations(model, data)
        self._data = data if name == settings.data else data.with_validation()
        if not isinstance(self._data.train, TensorDataset):
            raise ValueError(
                "Expected data_options without max_degree: terms of a graph cannot be spread over clients, "
                "because a node is in terms of several."
            )
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
        return cross_entropy

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
        assert isinstance(self._data.test, TensorDataset)
        return self._data.test

    def make_blocks(self, model: nn.Module) -> None:
        """See `Task.make_blocks`."""

    def label_counts(self) -> list[list[int]]:
        """See `Task.label_counts`."""
        labels = self._labels()
        return [np.bincount(labels[part], minlength=self._data.classes).tolist() for part in self._parts]

    def _labels(self) -> np.ndarray:
        assert isinstance(self._data.train, TensorDataset)
        return self._data.train.tensors[-1].numpy()


class ModuleTask:
    """A user's module as a task.

    Args:
        module: The module; see `Task`.
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
