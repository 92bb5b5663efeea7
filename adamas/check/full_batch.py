"""Chooses the batch of the replays: of the run's own size, with a few examples to examine closely."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adamas._nests import named_tensors
from adamas.check.measures import engine_norms, losses, unusable_rows
from adamas.check.replay import examples_of
from adamas.loading import dataset_length
from adamas.run.loop import PrivateRun
from adamas.sampling import Sampler, Shuffled, TruncatedPoisson

LARGEST = 512
"""The most examples of a batch that is replayed."""

_DEVIATIONS = 3  # that a batch is larger than the expected size


@dataclass(frozen=True)
class FullBatch:
    """A batch as large as the batches of the run become.

    Attributes:
        places: Its examples, by their places in the data set.
        chosen: The positions of the examples to examine one by one, the most extreme ones first: those of
            the largest and smallest losses, gradients and inputs. Those without a finite gradient are among
            them only if all are such; one of these is in the first micro-batch, beside the chosen ones.
        micro_batch_size: How many are processed at once; the chosen ones are in the first micro-batch.
    """

    places: list[int]
    chosen: list[int]
    micro_batch_size: int

    @property
    def together(self) -> list[int]:
        """The first micro-batch."""
        return self.places[: self.micro_batch_size]


def full_batch(run: PrivateRun, examples: int) -> FullBatch:
    """Spreads a batch over the data set, and chooses some of its examples."""
    n = dataset_length(run.loader.dataset)
    places = spread(n, min(_usual_most(run.loader.sampler), LARGEST))
    micro = min(run.loader.micro_batch_size or len(places), len(places))
    measured, unusable = _measured(run, places, micro)
    usable = [i for i in range(len(places)) if i not in unusable] or list(range(len(places)))
    noted = [*_extremes(measured[:, usable].nan_to_num()), *spread(len(usable), examples)]
    most = min(examples, max(1, micro - 1) if unusable else micro)
    chosen = [usable[i] for i in dict.fromkeys(noted)][:most]
    slots = spread(micro, len(chosen))
    others = [i for i in range(len(places)) if i not in chosen]
    others.sort(key=lambda i: i not in unusable[:1])  # one that is not usable first
    left, taken = iter(others), dict(zip(slots, chosen, strict=True))
    order = [taken[i] if i in taken else next(left) for i in range(len(places))]
    return FullBatch([places[i] for i in order], slots, micro)


def usable_places(run: PrivateRun, places: Sequence[int]) -> list[int]:
    """Returns those of a few examples that have a finite gradient, or all of them if none has."""
    _, unusable = _measured(run, places, run.loader.micro_batch_size or len(places))
    return [place for i, place in enumerate(places) if i not in unusable] or list(places)


def spread(n: int, count: int) -> list[int]:
    """Returns `count` numbers below n at even distances, or all of them if there are fewer."""
    return [int(place) for place in np.unique(np.linspace(0, n - 1, min(n, count)).astype(int))]


def _usual_most(sampler: Sampler) -> int:
    """Returns a size that batches hardly ever exceed."""
    if isinstance(sampler, TruncatedPoisson):
        return sampler.max_batch_size
    if isinstance(sampler, Shuffled):
        return sampler.batch_size
    return sampler.batch_size + math.ceil(_DEVIATIONS * math.sqrt(sampler.batch_size * (1 - sampler.rate)))


def _measured(run: PrivateRun, places: Sequence[int], micro: int) -> tuple[Tensor, list[int]]:
    """Returns norms, losses and sizes of the examples, as three rows, and the unusable ones."""
    columns: list[Tensor] = []
    unusable: list[int] = []
    for start in range(0, len(places), micro):
        data = examples_of(run, places[start : start + micro])
        norms = engine_norms(run, data).double().cpu()
        if not norms.isfinite().all():
            unusable += sorted(start + i for i in unusable_rows(run, data))
        columns.append(torch.stack([norms, losses(run, data).double().cpu(), _sizes(data)]))
    return torch.cat(columns, 1), unusable


def _extremes(measured: Tensor) -> list[int]:
    """Returns the positions of the largest and smallest gradient and loss, and of the largest input."""
    norms, values, inputs = measured
    return [
        int(i) for i in (norms.argmax(), values.argmin(), values.argmax(), norms.argmin(), inputs.argmax())
    ]


def _sizes(data: Any) -> Tensor:
    """Returns the largest magnitude in each example's inputs that are vectors of real numbers."""
    tensors = [x for _, x in named_tensors(data)]
    sizes = torch.zeros(len(tensors[0]), dtype=torch.float64)
    for x in tensors:
        if x.is_floating_point() and x.dim() > 1 and x.numel():
            sizes = sizes.maximum(x.flatten(1).abs().amax(1).double().cpu())
    return sizes
