"""Checks that a forward or a release leaves no state behind, in the model or in its loss."""

from torch import Tensor, nn

from adamas._guards.state import Snapshot
from adamas.check.base import FAIL, NOT_APPLICABLE, PASS, STEPS, Outcome, Replay
from adamas.check.measures import losses, same
from adamas.check.replay import examples_of, release_of

_SIZES = (1, 2, 3, 5, 8)
_RELEASES = 4


def state(replay: Replay) -> Outcome:
    """Makes forwards and releases without a step, on several sizes, and compares all tensors bit by bit."""
    run, batch = replay.fresh(), replay.batch
    before, snapshot = _registered(run.model), Snapshot(run.model, run.loss, whole=True)
    count = len(batch.places)
    for size in [*(size for size in _SIZES if size < count), count]:
        for start in range(0, size, batch.micro_batch_size):
            losses(run, examples_of(run, batch.places[:size][start : start + batch.micro_batch_size]))
        if (changed := _changed(before, run.model)) is not None:
            return FAIL, f"{changed!r} changes in a forward on {size} examples"
        snapshot.check()
    for release in range(_RELEASES):
        release_of(run, batch.places[release:], release)
        if (changed := _changed(before, run.model)) is not None:
            return FAIL, f"{changed!r} changes in release {release + 1} on {count - release} examples"
        snapshot.check()
    return PASS, (
        f"{len(before)} parameters and buffers, and what modules hold beside them, are the same after "
        f"forwards on 1 to {count} examples and {_RELEASES} releases, bit by bit"
    )


def frozen_parameters(replay: Replay) -> Outcome:
    """Trains a few steps, and compares the frozen parameters bit by bit."""
    frozen = [name for name, p in replay.still.model.named_parameters() if not p.requires_grad]
    if not frozen:
        return NOT_APPLICABLE, "no parameter is frozen"
    run = replay.fresh()
    before = {name: value for name, value in _registered(run.model).items() if name in frozen}
    trained = 0
    for step in run:
        trained = step.number
        if trained == STEPS:
            break
    if (changed := _changed(before, run.model)) is not None:
        return FAIL, f"{changed!r} is frozen, and changed within {trained} steps"
    return PASS, f"{len(frozen)} frozen parameters are the same after {trained} steps, bit by bit"


def _registered(model: nn.Module) -> dict[str, Tensor]:
    """Copies all parameters and buffers."""
    return {name: value.detach().clone() for name, value in _named(model).items()}


def _changed(before: dict[str, Tensor], model: nn.Module) -> str | None:
    """Returns the first name whose tensor has changed in shape, type or value."""
    now = _named(model)
    for name, old in before.items():
        if name not in now or not same(now[name], old):
            return name
    return None


def _named(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
