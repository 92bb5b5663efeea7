"""Records which examples the run's loader really loads, step by step."""

import time
from itertools import islice

import numpy as np
import torch
from torch.utils.data import TensorDataset

from adamas.loading import Batch, Loader, dataset_length
from adamas.run.loop import PrivateRun
from adamas.sampling import Shuffled

# A rate that is off by 5% is then 10 standard deviations away: 5 for a false alarm, 3 for the power, 2 spare.
_LEAST_DRAWN = 40_000
_LEAST_BATCHES, _MOST_BATCHES = 64, 8000
_SECONDS, _AT_ONCE = 8.0, 16  # time limit for drawing; batches between two looks at the clock
_WORKERS_STEPS = 3


def loaded_batches(run: PrivateRun) -> list[np.ndarray]:
    """Loads the batches of steps 0, 1, ..., and returns the places of their examples, without padding.

    A copy of the loader loads places instead of examples. Each share of a data-parallel run is loaded here,
    one after the other.
    """
    sampler, n = run.loader.sampler, dataset_length(run.loader.dataset)
    loader = run.loader.on(TensorDataset(torch.arange(n)))
    loader.collate_fn, loader.device = None, None
    workers, loader.num_workers = loader.num_workers, 0
    steps = min(max(_LEAST_BATCHES, -(-_LEAST_DRAWN // sampler.batch_size)), _MOST_BATCHES)
    if isinstance(sampler, Shuffled):
        steps = 2 * sampler.steps_per_epoch()
    batches: list[np.ndarray] = []
    end = time.monotonic() + _SECONDS
    while len(batches) < steps and (len(batches) < _AT_ONCE or time.monotonic() < end):
        batches += _loaded(loader, len(batches), min(steps, len(batches) + _AT_ONCE))
    if workers:
        loader.num_workers = workers
        first = _loaded(loader, 0, min(steps, _WORKERS_STEPS))
        if not all(np.array_equal(a, b) for a, b in zip(first, batches, strict=False)):
            raise RuntimeError("Expected worker processes to load the examples that were drawn.")
    return batches


def _loaded(loader: Loader, first: int, end: int) -> list[np.ndarray]:
    shares = []
    for rank in range(loader.world_size):
        loader.rank = rank
        shares.append([_places(batch) for batch in islice(loader.batches(first, end), end - first)])
    return [np.concatenate(parts) for parts in zip(*shares, strict=True)]


def _places(batch: Batch) -> np.ndarray:
    parts = [np.empty(0, dtype=np.int64)]
    parts += [data[0][: len(data[0]) - padding].numpy() for data, padding in batch]
    return np.concatenate(parts)
