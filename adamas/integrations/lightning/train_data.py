"""Takes the training data of a fit from its loader, and stands in for batches in Lightning's loop."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
)

from adamas.errors import UnsupportedError
from adamas.loading import dataset_length


class Turn:
    """Stands for a batch in the hooks of Lightning, without its private examples."""


class Turns:
    """Stands for the loader in Lightning's loop: one turn for each private step of an epoch.

    Args:
        steps: Steps of an epoch.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Turn]:
        return (Turn() for _ in range(self._steps))

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: the run knows which step is next. Lightning asks before it resumes in an epoch."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Does nothing: the run restores its place."""


@dataclass(frozen=True)
class TrainData:
    """What a private run takes from the loader that was given to `Trainer.fit`.

    Attributes:
        dataset: The data set.
        batch_size: The batch size of the loader; None if a data set was given.
        collate_fn: Joins examples.
        num_workers: Worker processes.
    """

    dataset: Dataset[Any]
    batch_size: int | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    num_workers: int = 0

    @classmethod
    def of(cls, loader: Any) -> "TrainData":
        """Reads a `DataLoader` or a data set.

        Raises:
            UnsupportedError: If the loader draws or loads in a way that the run would not repeat.
        """
        if not isinstance(loader, DataLoader):
            dataset_length(loader)
            return cls(loader)
        dataset_length(loader.dataset)
        batch_size = _sampled_batch_size(loader)
        if type(loader).__iter__ is not DataLoader.__iter__:
            raise UnsupportedError(
                f"Expected a torch DataLoader, got {type(loader).__name__}, which iterates in its own way. "
                "The run draws and loads batches itself: put the change into the data set or collate_fn."
            )
        if loader.worker_init_fn is not None:
            raise UnsupportedError(
                "Expected worker_init_fn=None, got a function: the run starts and seeds its own workers. "
                "Prepare what a worker needs in the data set."
            )
        own = loader.collate_fn
        standard = own in (default_collate, default_convert)  # what torch takes if the user gives none
        return cls(loader.dataset, batch_size, None if standard else own, loader.num_workers)


def _sampled_batch_size(loader: DataLoader[Any]) -> int:
    """Returns the batch size of a loader that draws each example once per epoch, in order or shuffled."""
    batches = loader.batch_sampler
    if batches is None:
        raise UnsupportedError(
            "Expected a batch_size of the DataLoader, got None: its data set makes the batches, so a "
            "record's sampling probability is unknown. Give a data set of single examples."
        )
    if type(batches) is not BatchSampler:
        raise UnsupportedError(_another("batch_sampler", batches))
    sampler = batches.sampler  # that of the loader, unless it was given a batch_sampler
    records = dataset_length(loader.dataset)
    plain = (type(sampler) is SequentialSampler and len(sampler) == records) or (
        isinstance(sampler, RandomSampler)
        and type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == records
    )
    if not plain:
        raise UnsupportedError(_another("sampler", sampler))
    return batches.batch_size


def _another(name: str, sampler: object) -> str:
    return (
        f"Expected a DataLoader without a {name} of its own, got {type(sampler).__name__}: the run draws the "
        "batches, so that sampling and accounting agree. Leave it out, and give the data set to protect "
        "(a Subset for a part of it)."
    )
