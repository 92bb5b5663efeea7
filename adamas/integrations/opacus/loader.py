"""The data loader of a private loop, which yields batches without values."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import Dataset

from adamas.integrations.opacus.training import Training


class PrivateLoader:
    """Yields the logical batches of one epoch, with a deferred value in place of each tensor.

    A batch is drawn and loaded in the private step, by `loss.backward()`.

    Attributes:
        dataset: The data set.
        batch_size: Expected number of examples of a batch.
        sample_rate: The probability with which an example joins a batch.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        sampler = training.run.loader.sampler
        self.dataset: Dataset[Any] = training.run.loader.dataset
        self.batch_size, self.sample_rate = sampler.batch_size, sampler.rate

    def __len__(self) -> int:
        return self._training.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        return self._training.turns()

    @property
    def training(self) -> Training:
        """The training that the batches belong to."""
        return self._training
