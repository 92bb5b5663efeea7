"""Counts the examples that take no part in a training because their gradient is not finite."""

from dataclasses import dataclass

from adamas._guards.state import unchanged
from adamas.check.base import FAIL, PASS, Outcome, Replay
from adamas.check.measures import engine_norms
from adamas.check.replay import examples_of
from adamas.loading import dataset_length
from adamas.run.loop import PrivateRun

_CHUNK = 512


@dataclass(frozen=True)
class Unusable:
    """How many examples have no finite gradient. NOT PRIVATE.

    Attributes:
        count: Their number.
        total: The number of all examples.
    """

    count: int
    total: int

    def __str__(self) -> str:
        return (
            f"{self.count} of {self.total} examples have no finite gradient, and take no part in a training "
            "(not private: counted without noise)"
        )


def count_unusable(run: PrivateRun) -> Unusable:
    """Counts the examples of a run whose gradient is not finite. NOT PRIVATE, and for the owner of the data.

    A run leaves out such examples and does not say so, because that would be a release. Count before the
    training, while the model has its initial weights: later counts depend on its state. Counting records and
    changes nothing, so the run does the same afterwards.

    Args:
        run: The run.

    Example:
        >>> import adamas, torch
        >>> x = torch.randn(50, 2)
        >>> x[:3] = torch.nan
        >>> model = torch.nn.Linear(2, 1)
        >>> run = adamas.make_private(
        ...     model, adamas.rules.SGD(model.parameters()), torch.utils.data.TensorDataset(x),
        ...     lambda model, batch: model(batch[0]).square().sum(1),
        ...     batch_size=10, steps=3, noise_multiplier=1.0, delta=1e-3)
        >>> count_unusable(run)
        Unusable(count=3, total=50)
    """
    total = dataset_length(run.loader.dataset)
    return Unusable(total - _finite(run, list(range(total))), total)


def usable_examples(replay: Replay) -> Outcome:
    """Computes the gradients of a batch; at least one must be finite."""
    run, places = replay.still, replay.batch.places
    finite = _finite(run, places)
    seen = f"{finite} of {len(places)} examples of a batch have a finite gradient at the start"
    return (PASS if finite else FAIL), seen


def _finite(run: PrivateRun, places: list[int]) -> int:
    size = min(run.loader.micro_batch_size or _CHUNK, _CHUNK)
    with unchanged(run.model, run.loss):
        chunks = (places[start : start + size] for start in range(0, len(places), size))
        return sum(int(engine_norms(run, examples_of(run, chunk)).isfinite().sum()) for chunk in chunks)
