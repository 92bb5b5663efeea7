"""Checks that a batch holds its examples, one row each, and nothing else."""

from typing import Any

import numpy as np
from torch import Tensor

from adamas._guards.collate import check_collate
from adamas._nests import named_leaves, named_tensors
from adamas._streams import global_randomness
from adamas.check.base import FAIL, PASS, Outcome, Replay
from adamas.check.measures import same
from adamas.loading import dataset_length
from adamas.run.loop import PrivateRun


def tensors_only(replay: Replay) -> Outcome:
    """Looks for parts of a batch that are not tensors, in batches of several sizes."""
    places, whole = replay.few(), replay.batch.together
    for batch in (places[:1], places, whole):
        for name, leaf in named_leaves(_loaded(replay.still, batch)):
            if leaf is not None and not isinstance(leaf, Tensor):
                return FAIL, f"{name} of {len(batch)} examples is of type {type(leaf).__name__}"
    count = len(dict(named_tensors(_loaded(replay.still, whole))))
    return PASS, f"{count} tensors and nothing else, in batches of 1, {len(places)} and {len(whole)} examples"


def collated_rows(replay: Replay) -> Outcome:
    """Compares an example's row in a batch with its row alone, and next to other examples."""
    run, places = replay.still, replay.batch.together
    check_collate(run.loader, places)
    whole, n, compared = _tensors(run, places), dataset_length(run.loader.dataset), 0
    if any(not same(x, again) for x, again in zip(whole, _tensors(run, places), strict=True)):
        return FAIL, "of the same examples and random state, two batches are made that differ"
    longest = max(places, key=lambda place: sum(x.numel() for x in _tensors(run, [place])))
    for i in replay.batch.chosen:
        for others in ([longest] * len(places), [(place + 1) % n for place in places]):
            others[i] = places[i]
            beside = _tensors(run, others)
            if any(a.shape != b.shape for a, b in zip(whole, beside, strict=True)):
                continue  # padding, and other random values
            compared += 1
            if any(not same(a[i], b[i]) for a, b in zip(whole, beside, strict=True)):
                return FAIL, "an example's row depends on the other examples"
    words = "alone and " * (not replay.collates_at_random)
    return PASS, (
        f"each of {len(places)} examples has one row of a batch, the same {words}beside other ones, of which "
        f"{compared} batches were made"
    )


def _loaded(run: PrivateRun, places: list[int]) -> Any:
    """Loads a batch without the loader's checks."""
    with global_randomness(0):
        return run.loader.fetch(np.asarray(places, dtype=np.int64))


def _tensors(run: PrivateRun, places: list[int]) -> list[Tensor]:
    return [x for _, x in named_tensors(_loaded(run, places))]
