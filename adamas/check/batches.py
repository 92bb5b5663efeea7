"""Whether a batch is made of its examples, one row each, and of nothing else."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adamas._nests import named_leaves, named_tensors
from adamas.check.base import FAIL, NOT_APPLICABLE, PASS, Outcome, Replay
from adamas.loading import dataset_length
from adamas.run import PrivateRun, model_randomness


def tensors_only(replay: Replay) -> Outcome:
    """Looks for parts of a batch that are no tensors, in batches of several sizes."""
    run, places = replay.still, replay.few()
    whole = replay.batch.together
    for batch in (places[:1], places, whole):
        for name, leaf in named_leaves(_collated(run, batch)):
            if leaf is not None and not isinstance(leaf, Tensor):
                return FAIL, f"{name} of {len(batch)} examples is of type {type(leaf).__name__}"
    count = len(_tensors(_collated(run, whole)))
    return PASS, f"{count} tensors and nothing else, in batches of 1, {len(places)} and {len(whole)} examples"


def collated_rows(replay: Replay) -> Outcome:
    """Compares an example's row of a batch with those beside other examples, and with the example alone."""
    run, places = replay.still, replay.batch.together
    n, compared = dataset_length(run.loader.dataset), 0
    whole, random = _tensors(_collated(run, places)), replay.collates_at_random
    if _differs(whole, _tensors(_collated(run, places))) is not None:
        return FAIL, "of the same examples and random state, collate_fn makes different batches"
    alone = {i: _rows(_tensors(_collated(run, [places[i]])), 0) for i in range(len(places))}
    longest = places[max(alone, key=lambda i: sum(x.numel() for x in alone[i].values()))]
    for i, place in enumerate(places):
        mine = _rows(whole, i)
        if not random:
            compared += 1
            if (name := _differs(mine, alone[i])) is not None:
                return FAIL, f"an example's row of {name} is another one than that of the example alone"
        if i not in replay.batch.chosen:
            continue
        for others in ([longest] * len(places), [(other + 1) % n for other in places]):
            others[i] = place
            beside = _rows(_tensors(_collated(run, others)), i)
            if random and any(beside[name].shape != x.shape for name, x in mine.items()):
                continue  # then other random values are drawn
            compared += 1
            if (name := _differs(mine, beside)) is not None:
                return FAIL, f"an example's row of {name} depends on the other examples"
    if not compared:
        return NOT_APPLICABLE, "collate_fn draws random values, and how many depends on the batch"
    words = "beside other ones" if random else "alone and beside other ones, but for padding"
    return PASS, f"each of {len(places)} examples has one row of a batch, the same {words}"


def _collated(run: PrivateRun, places: list[int]) -> Any:
    """A batch as the loader makes it, before it is looked at."""
    with model_randomness(run.noise.seed, 0):
        return run.loader.fetch(np.asarray(places, dtype=np.int64))


def _tensors(batch: Any) -> dict[str, Tensor]:
    return dict(named_tensors(batch))


def _rows(tensors: Mapping[str, Tensor], i: int) -> dict[str, Tensor]:
    return {name: x[i] for name, x in tensors.items()}


def _differs(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> str | None:
    """The first name whose tensors are not equal up to padding at the end or the beginning of an axis."""
    for name in [*a, *b]:
        if name not in a or name not in b or not _equal_but_for_padding(a[name], b[name]):
            return name
    return None


def _equal_but_for_padding(a: Tensor, b: Tensor) -> bool:
    if a.dim() != b.dim() or a.dtype != b.dtype:
        return False
    shape = [min(sizes) for sizes in zip(a.shape, b.shape, strict=True)]
    for at_end in (True, False):
        parts = []
        for x in (a, b):
            cut = [slice(0, k) if at_end else slice(x.shape[i] - k, None) for i, k in enumerate(shape)]
            outside = torch.ones(x.shape, dtype=torch.bool, device=x.device)
            outside[tuple(cut)] = False
            rest = x[outside]
            if len(rest) and bool((rest != rest[0]).any()):  # more than one value is no padding
                break
            parts.append(x[tuple(cut)].nan_to_num())
        if len(parts) == 2 and torch.equal(*parts):
            return True
    return False
