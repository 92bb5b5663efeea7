"""The options of a run: everything that is neither model, rule, data set nor loss.

Each option is written once, here, and `make_private` explains it. `adamas.experiment.Settings` inherits
`TrainingOptions`, and `adamas.federated.FederatedSettings` inherits `SharedOptions`. The commands take every
option of the class they need that has a text for its help.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import Sampler

from adamas import _validate
from adamas.accounting.data_ledger import DataLedger
from adamas.accounting.ledger import ACCOUNTANTS, Ledger
from adamas.callbacks.base import Callback
from adamas.distributed import Distributed
from adamas.engines import ENGINES
from adamas.graphs.samplers import TERM_SAMPLERS
from adamas.sampling import SAMPLERS
from adamas.secure_noise import NOISES

SchedulerFactory = Callable[[Optimizer, int], LRScheduler]
"""Makes a scheduler for a rule and the number of steps of the run."""

SAMPLINGS = tuple(dict.fromkeys([*SAMPLERS, *TERM_SAMPLERS]))
"""Names of all ways to draw batches; some are for graphs only."""

HELP, COMMAND_TYPE = "help", "command type"
"""Keys in the metadata of a field: its help on the command line, and its type there if it is another."""


def shown(text: str, command_type: Any = None) -> Mapping[str, Any]:
    """Makes the commands that train take an option.

    Args:
        text: Its help.
        command_type: Its type on the command line; None for that of the field.
    """
    return {HELP: text} | ({} if command_type is None else {COMMAND_TYPE: command_type})


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """Options that central and federated training share, as plain values; `make_private` explains them."""

    batch_size: int = field(metadata=shown("Expected batch size."))
    delta: float = field(metadata=shown("The delta of the guarantee."))
    epsilon: float | None = field(default=None, metadata=shown("Budget; or give --noise-multiplier."))
    noise_multiplier: float | None = field(default=None, metadata=shown("Or give --epsilon."))
    clip_norm: float = field(default=1.0, metadata=shown("Radius to which an example's gradient is clipped."))
    seed: int | None = field(
        default=None, metadata=shown("Reproducible; whoever knows it can remove the noise.")
    )
    engine: str = field(default="auto", metadata=shown(f"auto, or one of: {', '.join(ENGINES)}."))
    micro_batch_size: int | None = field(default=None, metadata=shown("Maximum examples processed at once."))
    accountant: str = field(default="pld", metadata=shown(f"One of: {', '.join(ACCOUNTANTS)}."))

    def check_shared(self) -> None:
        """Raises if an option has a value that no training can have."""
        _validate.count(batch_size=self.batch_size)
        _exactly_one(epsilon=self.epsilon, noise_multiplier=self.noise_multiplier)
        if self.epsilon is not None:
            _validate.positive(epsilon=self.epsilon)
        if self.noise_multiplier is not None:
            _validate.noise_multiplier(noise_multiplier=self.noise_multiplier)
        _validate.one_of(["auto", *ENGINES], engine=self.engine)
        if self.micro_batch_size is not None:
            _validate.count(micro_batch_size=self.micro_batch_size)
        _validate.one_of(ACCOUNTANTS, accountant=self.accountant)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(SharedOptions):
    """Options that decide what a run computes, as plain values; `make_private` explains them."""

    max_epsilon: float | None = field(
        default=None, metadata=shown("With --noise-multiplier: stop before more is spent.")
    )
    epochs: int | None = field(default=None, metadata=shown("Passes over the data; or give --steps."))
    steps: int | None = field(default=None, metadata=shown("Or give --epochs."))
    noise: str = field(
        default="reproducible",
        metadata=shown("reproducible, or secure: safe from floating-point attacks, without a seed."),
    )
    sampling: str = field(default="poisson", metadata=shown(f"One of: {', '.join(SAMPLINGS)}."))
    max_batch_size: int | None = field(default=None, metadata=shown("For truncated-poisson."))
    ema: float | AveragedModel | None = field(
        default=None,
        metadata=shown("EMA decay; the averaged weights are evaluated and saved.", float | None),
    )
    allow_large_delta: bool = field(default=False, metadata=shown("Accept a delta of 1/N or more."))
    raw: bool = field(
        default=False,
        metadata=shown("Add moments without noise to the diagnostics. NOT PRIVATE, for teaching."),
    )


@dataclass(frozen=True, kw_only=True)
class RunOptions(TrainingOptions):
    """All options of a run, checked as far as they can be without model, rule and data.

    `make_private` explains them, and makes this of its keywords.

    Raises:
        ValueError, TypeError: If an option has a value that no run can have, or contradicts another one.

    Example:
        >>> RunOptions(batch_size=50, delta=1e-4, epochs=4, epsilon=3.0).sampling
        'poisson'
        >>> RunOptions(batch_size=50, delta=1e-4, epochs=4)
        Traceback (most recent call last):
        ValueError: Expected exactly one of epsilon and noise_multiplier, got neither.
    """

    collate_fn: Callable[[list[Any]], Any] | None = None
    num_workers: int = 0
    scheduler: LRScheduler | SchedulerFactory | None = None
    progress: bool | None = field(
        default=None, metadata=shown("Show a progress bar; on a terminal if not given.")
    )
    checkpoint: str | Path | None = None
    checkpoint_every: int | None = field(
        default=None, metadata=shown("Steps between two checkpoints of the run, in --out.")
    )
    resume: bool = field(
        default=False,
        metadata=shown("Continue the run in --out, if any; show its result if it has finished."),
    )
    data_ledger: str | Path | DataLedger | None = field(
        default=None,
        metadata=shown("Ledger of the data set, whose budget pays for the run.", Path | None),
    )
    distributed: Distributed = False
    callbacks: Sequence[Callback] = ()
    spent: Ledger | None = None

    def __post_init__(self) -> None:
        self.check_shared()
        self._check_length()
        self._check_noise()
        self._check_sampling()
        self._check_scheduler()
        self._check_average()
        self._check_checkpoint()
        self._check_callbacks()
        if self.spent is not None and not isinstance(self.spent, Ledger):
            raise TypeError(f"Expected spent={self.spent!r} to be an adamas.Ledger.")

    def _check_length(self) -> None:
        _exactly_one(epochs=self.epochs, steps=self.steps)
        for name, value in (("epochs", self.epochs), ("steps", self.steps)):
            if value is not None:
                _validate.count(**{name: value})

    def _check_noise(self) -> None:
        if self.max_epsilon is not None:
            _validate.positive(max_epsilon=self.max_epsilon)
            if self.noise_multiplier is None:
                raise ValueError(
                    "Expected max_epsilon with noise_multiplier only: epsilon is a limit itself."
                )
        _validate.delta(delta=self.delta)
        _validate.positive_or_inf(clip_norm=self.clip_norm)
        if self.clip_norm == float("inf") and self.noise_multiplier != 0:
            raise ValueError("Expected a finite clip_norm: noise cannot hide a gradient of any length.")
        _validate.one_of(NOISES, noise=self.noise)
        if not isinstance(self.raw, bool):
            raise TypeError(f"Expected raw={self.raw!r} to be True or False.")

    def _check_sampling(self) -> None:
        if isinstance(self.sampling, Sampler):
            raise TypeError(
                f"Expected sampling to be a name, got the sampler {type(self.sampling).__name__}, which has "
                f"no accounting. Choose one of {', '.join(SAMPLINGS)}, and weight the classes in the "
                "loss."
            )
        _validate.one_of(SAMPLINGS, sampling=self.sampling)
        if (self.max_batch_size is not None) != (self.sampling == "truncated-poisson"):
            raise ValueError(
                f"Expected max_batch_size together with sampling='truncated-poisson' and only then, got "
                f"max_batch_size={self.max_batch_size!r} and sampling={self.sampling!r}."
            )

    def _check_scheduler(self) -> None:
        if self.scheduler is None:
            return
        if isinstance(self.scheduler, LRScheduler):
            check_needs_no_metric(self.scheduler)
        elif not callable(self.scheduler):
            raise TypeError(
                f"Expected scheduler={self.scheduler!r} to be a learning-rate scheduler of torch, or a "
                "function that makes one of the rule and the number of steps."
            )

    def _check_average(self) -> None:
        if isinstance(self.ema, float):
            _validate.decay(ema=self.ema)
        elif self.ema is not None and not isinstance(self.ema, AveragedModel):
            raise TypeError(f"Expected ema={self.ema!r} to be a decay or a torch AveragedModel.")

    def _check_checkpoint(self) -> None:
        if (self.checkpoint is None) != (self.checkpoint_every is None):
            raise ValueError(
                f"Expected both checkpoint and checkpoint_every or neither, got "
                f"checkpoint={self.checkpoint!r} and checkpoint_every={self.checkpoint_every!r}."
            )
        if self.checkpoint_every is not None:
            _validate.count(checkpoint_every=self.checkpoint_every)
        elif self.resume:
            raise ValueError("Expected checkpoint with resume=True: the file to continue from.")

    def _check_callbacks(self) -> None:
        if not isinstance(self.callbacks, Sequence) or not all(map(callable, self.callbacks)):
            raise TypeError(
                f"Expected callbacks={self.callbacks!r} to be a list of functions callback(run, step)."
            )


def check_needs_no_metric(scheduler: LRScheduler) -> None:
    """Raises for a scheduler that a run cannot step."""
    if isinstance(scheduler, ReduceLROnPlateau):
        raise TypeError(
            "Expected a scheduler that needs no metric, got ReduceLROnPlateau: a training loss is not "
            "private. Step it yourself with the loss on public data."
        )


def _exactly_one(**values: object) -> None:
    given = [name for name, value in values.items() if value is not None]
    if len(given) != 1:
        first, second = values
        raise ValueError(
            f"Expected exactly one of {first} and {second}, got {' and '.join(given) or 'neither'}."
        )
