"""The second step of `make_private`: tries loader, loss and engines on a few examples.

Nothing is released: the probes say whether a model can be trained, or raise.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn
from torch.utils.checkpoint import CheckpointError

from adamas._guards.collate import MOST_EXAMPLES, check_collate, padded_and_alone
from adamas._guards.state import Watch, unchanged
from adamas.engines import ENGINES, FAST, READS_VALUES, Loss, trainable_parameters
from adamas.engines.probes import PADDED_EXAMPLES, PROBE_EXAMPLES, check_loss, compare_alone, compare_padded
from adamas.errors import UnsupportedError
from adamas.geometry import Geometry
from adamas.loading import Batch, Loader
from adamas.run.randomness import model_randomness
from adamas.run.trial_errors import computing, joining
from adamas.run.validation import Validated
from adamas.sampling import Draw


@dataclass(frozen=True)
class Probed:
    """What accepts the model.

    Attributes:
        loader: Loads the batches.
        engine: The name of the engine.
        refusal: Why `engine="auto"` did not take the fast engine; None if it did.
    """

    loader: Loader
    engine: str
    refusal: UnsupportedError | None


def probed(arguments: Validated) -> Probed:
    """Makes the loader, tries it with model and loss, and chooses the engine."""
    model, loss, options = arguments.model, arguments.loss, arguments.options
    loader = _loader(arguments)
    n = arguments.sampler.dataset_size
    with unchanged(model, loss), model_randomness(arguments.seed, 0):
        size = min(n, options.micro_batch_size or options.batch_size, MOST_EXAMPLES)
        rows = np.arange(min(n, PROBE_EXAMPLES))
        with joining(loader):
            check_collate(loader, np.linspace(0, n - 1, size).astype(int).tolist())
            joined = loader.fetch(rows)
        sample = loader.check(joined, rows)
        with computing(model, sample):
            check_loss(model, loss, sample)
        spread = np.linspace(0, n - 1, min(n, PADDED_EXAMPLES)).astype(int)
        for micro in Batch(0, Draw(spread), loader, None).micro_batches():
            padded = padded_and_alone(micro.data, micro.sizes, PADDED_EXAMPLES)
            if padded is not None:
                compare_padded(model, loss, *padded)
        engine, refusal = _chosen_engine(options.engine, model, loss, sample)
    return Probed(loader, engine, refusal)


def probed_before(arguments: Validated, engine: str) -> Probed:
    """Makes the loader only, for an engine that probes of the same model, loss and data have chosen."""
    return Probed(_loader(arguments), engine, None)


def _loader(arguments: Validated) -> Loader:
    options, ranks = arguments.options, arguments.ranks
    device = next(iter(trainable_parameters(arguments.model).values())).device
    if ranks is not None:
        ranks.check_device(device)
    return Loader(
        arguments.dataset,
        arguments.sampler,
        collate_fn=options.collate_fn,
        micro_batch_size=options.micro_batch_size,
        num_workers=options.num_workers,
        device=device,
        rank=0 if ranks is None else ranks.rank,
        world_size=1 if ranks is None else ranks.world_size,
    )


def _chosen_engine(
    engine: str, model: nn.Module, loss: Loss, sample: Any
) -> tuple[str, UnsupportedError | None]:
    """Returns the first engine that accepts model and loss, and why it is not the fast one."""
    names = list(ENGINES) if engine == "auto" else [engine]
    ball = Geometry.ball(trainable_parameters(model).values())
    refusal: UnsupportedError | None = None
    compared = False
    for name in names:
        try:
            if name == FAST:
                ENGINES[name](model, loss, sample).norms(ball)
            if not compared:
                compare_alone(model, loss, sample)
                compared = True
            if name in READS_VALUES:
                with Watch().over(model, loss, turn=0, reads_values=True) as state:
                    ENGINES[name](model, state.between(loss), sample).norms(ball)
                    state.check()
            elif name != FAST:
                ENGINES[name](model, loss, sample).norms(ball)
        except UnsupportedError as error:
            refused = error
        except CheckpointError as error:
            refused = _differs_when_repeated(name)
            refused.__cause__ = error
        else:
            return name, refusal
        refusal = refusal or refused
        if name == names[-1]:
            raise refused
    raise AssertionError("ENGINES is empty.")


def _differs_when_repeated(engine: str) -> UnsupportedError:
    other = "" if engine == "loop" else ", or use engine='loop'"
    return UnsupportedError(
        f"engine={engine!r} cannot run the model under checkpointing of activations: a checkpoint saves "
        f"other tensors when its forward is run again. Turn it off (gradient_checkpointing=False){other}."
    )
