"""Loads logical batches from a map-style data set, in micro-batches, optionally by worker processes.

While a micro-batch is loaded, torch's, NumPy's and Python's global generators are seeded by the run's seed,
the step and the micro-batch. So augmentation is the same in this process, in any worker, and in a resumed
run.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from adamas import _validate
from adamas._guards.collate import Apart, Collated, Sizes, is_own
from adamas._guards.datasets import check_dataset
from adamas._guards.forms import joined
from adamas._nests import check_rows, map_tensors
from adamas._streams import global_randomness
from adamas.distributed import rank_place
from adamas.errors import UnsupportedError
from adamas.sampling import Draw, Sampler


class Rows(Dataset[Any], ABC):
    """A data set of adamas that loads several examples at once. Each row reads its own example alone."""

    @abstractmethod
    def __len__(self) -> int:
        """Returns the number of examples."""

    @abstractmethod
    def rows(self, places: Tensor) -> tuple[Tensor, ...]:
        """Loads the examples at these places, as batch-first tensors."""

    def __getitem__(self, place: int | slice | Tensor) -> tuple[Tensor, ...]:
        """Loads one example, or several at once as `TensorDataset` does."""
        if isinstance(place, slice):
            return self.rows(torch.arange(len(self))[place])
        if isinstance(place, Tensor) and place.dim():
            return self.rows(place.nonzero().flatten() if place.dtype == torch.bool else place)
        number = range(len(self))[int(place)]
        return tuple(value[0] for value in self.rows(torch.tensor([number])))


def loads_rows(dataset: Dataset[Any]) -> bool:
    """Tells whether a data set loads several examples at once and keeps them apart: it is not a user's."""
    if isinstance(dataset, Rows):
        return type(dataset).__module__.partition(".")[0] == __name__.partition(".")[0]
    return type(dataset) is TensorDataset


def _rows(dataset: Any, places: Tensor) -> tuple[Tensor, ...]:
    """Loads rows by the method of the class, which an attribute of the data set does not replace."""
    rows: tuple[Tensor, ...] = (
        type(dataset).rows(dataset, places) if isinstance(dataset, Rows) else dataset[places]
    )
    return rows


class Batch:
    """One logical batch, as a sampler drew it: the ticket for a recorded release.

    Iterating loads its micro-batches one after another, each with the number of padding rows at its end.
    How many examples it holds is private under Poisson sampling.
    """

    def __init__(self, step: int, draw: Draw, loader: "Loader", loaded: Iterator[Any] | None) -> None:
        self.step = step
        self.loader = loader
        self.sampler = loader.sampler
        self._chunks = loader.chunks(draw)
        self._loaded = loaded
        self._unread = len(self._chunks) if loaded is not None else 0

    def __repr__(self) -> str:
        return f"Batch(step={self.step})"

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        return ((micro.data, micro.padding) for micro in self.micro_batches())

    def micro_batches(self) -> Iterator["MicroBatch"]:
        """Loads the micro-batches, with the lengths of padded rows."""
        for position, (indices, padding) in enumerate(self._chunks):
            if self._loaded is not None and position == len(self._chunks) - self._unread:
                self._unread -= 1
                loaded = next(self._loaded)
            else:
                loaded = self.loader.load(indices, self.loader.state_of(self.step, position))
            sizes = loaded.sizes if isinstance(loaded, Collated) else {}
            data = loaded.data if isinstance(loaded, Collated) else loaded
            yield MicroBatch(self.loader.check(data, indices), padding, sizes)

    def discard(self) -> None:
        """Discards what the workers have loaded for this batch and was not read."""
        while self._unread:
            assert self._loaded is not None
            self._unread -= 1
            next(self._loaded)


class MicroBatch(NamedTuple):
    """A part of a logical batch.

    Attributes:
        data: The examples, collated.
        padding: How many rows at its end are padding, and not examples of the draw.
        sizes: The shapes of rows without padding, where collate_fn pads them.
    """

    data: Any
    padding: int
    sizes: Sizes


class Loader:
    """Loads the batches that a sampler draws.

    Args:
        dataset: Anything with `__len__` and `__getitem__`.
        sampler: Draws the indices of each step.
        collate_fn: Joins examples into a batch of batch-first tensors; torch's default if None.
        micro_batch_size: Maximum examples in memory at once; the whole batch if None.
        num_workers: Worker processes that load ahead; 0 loads in this process.
        device: The device to move tensors to.
        rank: In a data-parallel run, which share of a draw is loaded.
        world_size: In a data-parallel run, the number of shares.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        sampler: Sampler,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        micro_batch_size: int | None = None,
        num_workers: int = 0,
        device: torch.device | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if micro_batch_size is not None:
            _validate.count(micro_batch_size=micro_batch_size)
        _validate.whole(num_workers=num_workers)
        self._dataset = dataset
        self.sampler = sampler
        self.collate_fn = collate_fn
        self.micro_batch_size = micro_batch_size
        self.num_workers = num_workers
        self.device = device
        self.rank, self.world_size = rank, world_size
        self.compares = True
        """Whether collate_fn is compared with what it makes of single examples, in every batch."""
        self._apart: Apart | None = None

    @property
    def dataset(self) -> Dataset[Any]:
        """The data set. Another one would not be what the sampler accounts for."""
        return self._dataset

    def on(self, dataset: Dataset[Any]) -> "Loader":
        """Returns a loader of another data set, for replays, which release nothing."""
        other = copy.copy(self)
        other._dataset = dataset
        return other

    def batches(self, first: int, end: int) -> Iterator[Batch]:
        """Yields the logical batches of steps `first` to `end` - 1. The caller may stop early."""
        loaded = self._prefetch(first, end) if self.num_workers else None
        for step in range(first, end):
            batch = Batch(step, self.draw(step), self, loaded)
            yield batch
            batch.discard()

    def draw(self, step: int) -> Draw:
        """Returns the part of a step's draw that this process loads."""
        draw = self.sampler.indices(step)
        return draw if self.world_size == 1 else draw.dealt(self.rank, self.world_size)

    def chunks(self, draw: Draw) -> list[tuple[np.ndarray, int]]:
        """Returns the indices of each micro-batch, with its number of padding rows."""
        n = len(draw.indices)
        size = self.micro_batch_size or max(1, n)
        real = n - draw.padding
        return [
            (draw.indices[i : i + size], min(n, i + size) - min(max(real, i), i + size, n))
            for i in range(0, n, size)
        ]

    def fetch(self, indices: np.ndarray) -> Any:
        """Loads and collates these examples in this process."""
        if loads_rows(self.dataset) and self.collate_fn is None:
            return list(_rows(self.dataset, torch.from_numpy(indices)))  # as default_collate, at once
        collate = self.collate_fn if is_own(self.collate_fn) else joined
        assert collate is not None
        return collate([self.dataset[int(i)] for i in indices])

    def load(self, indices: np.ndarray, state: int) -> Any:
        """Loads a micro-batch with the global generators seeded by `state`.

        A collate_fn of the user is checked: see `adamas._guards.collate.Apart`.
        """
        if loads_rows(self.dataset) and self.collate_fn is None:
            return self.fetch(indices)
        return _Seeded(self.dataset, self._collate()).__getitems__([state, *indices.tolist()])

    def state_of(self, step: int, position: int) -> int:
        """Returns the seed of the global generators for a micro-batch of a step."""
        words = self.sampler.seed.words("loading", step, position, *rank_place(self.rank), count=1)
        return int(words[0])

    def check(self, data: Any, indices: np.ndarray) -> Any:
        """Checks the length of a micro-batch, and moves it to the device."""
        check_rows(data, len(indices))
        return data if self.device is None else map_tensors(lambda x: x.to(self.device), data)

    def compared(self) -> Apart | None:
        """Returns the user's collate_fn, which compares each batch; None for torch's."""
        if not self.compares or self.collate_fn is None or not is_own(self.collate_fn):
            return None
        if self._apart is None or self._apart.collate is not self.collate_fn:
            self._apart = Apart(self.collate_fn, self.dataset)
        return self._apart

    def _collate(self) -> Callable[[list[Any]], Any]:
        if not is_own(self.collate_fn):
            return _joined
        return self.compared() or self.collate_fn or _joined

    def _prefetch(self, first: int, end: int) -> Iterator[Any]:
        words = self.sampler.seed.words("workers", first, *rank_place(self.rank), count=1)
        return iter(
            DataLoader(
                _Seeded(self.dataset, self._collate()),
                batch_sampler=_SeededLists(self, first, end),
                collate_fn=_as_it_is,
                num_workers=self.num_workers,
                generator=torch.Generator().manual_seed(int(words[0])),  # not from the user's global one
            )
        )


class _SeededLists:
    """Yields, for each micro-batch of a range of steps, the seed of the generators and then its indices."""

    def __init__(self, loader: Loader, first: int, end: int) -> None:
        self._loader, self._first, self._end = loader, first, end

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self._first, self._end):
            for position, (indices, _) in enumerate(self._loader.chunks(self._loader.draw(step))):
                yield [self._loader.state_of(step, position), *indices.tolist()]


class _Seeded(Dataset[Any]):
    """A data set whose items are whole micro-batches, loaded and collated, by workers or in this process.

    The examples are read one by one, even if the data set could return several.
    """

    def __init__(self, dataset: Dataset[Any], collate: Callable[[list[Any]], Any]) -> None:
        self._dataset, self._collate = dataset, collate

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError  # torch asks for whole micro-batches

    def __getitems__(self, numbers: list[int]) -> Any:
        state, *indices = numbers
        with global_randomness(state):
            return self._collate([self._dataset[i] for i in indices])


def _joined(examples: list[Any]) -> Any:
    """Joins examples of one form. A refusal is returned, since a worker process must not raise it."""
    try:
        return joined(examples)
    except UnsupportedError as error:
        return Collated(None, {}, error)


def _as_it_is(data: Any) -> Any:
    return data


def dataset_length(dataset: object) -> int:
    """Returns the number of examples; raises if the data set cannot be sampled."""
    check_dataset(dataset)
    length, item = getattr(dataset, "__len__", None), getattr(dataset, "__getitem__", None)
    if length is None or item is None:
        raise TypeError(
            f"Expected a data set with __len__ and __getitem__, got {type(dataset).__name__}: the sampling "
            "rate needs the number of examples."
        )
    n = int(length())
    if n < 1:
        raise ValueError("Expected a data set with at least one example, got an empty one.")
    return n
