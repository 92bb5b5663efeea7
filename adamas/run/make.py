"""`make_private`: sets up a private run in three steps, which validate, probe and calibrate."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset

from adamas.accounting import Plan, Spending
from adamas.accounting.data_ledger import DataLedger
from adamas.accounting.ledger import Ledger
from adamas.callbacks.base import Callback
from adamas.distributed import Distributed, raises_together
from adamas.engines import FAST, Loss
from adamas.errors import SlowEngineWarning
from adamas.rules.accelerated import plain_rule, plain_scheduler
from adamas.run.arguments import warn_if_evaluating
from adamas.run.calibration import calibrated, spent_before
from adamas.run.checkpoint import Checkpoints, load
from adamas.run.loop import PrivateRun
from adamas.run.options import RunOptions, SchedulerFactory
from adamas.run.probing import Probed, probed
from adamas.run.validation import Validated, check_scheduler, validated
from adamas.secure_noise import NOISES


@raises_together
def make_private(
    model: nn.Module,
    rule: torch.optim.Optimizer,
    dataset: Dataset[Any],
    loss: Loss,
    *,
    batch_size: int,
    delta: float,
    epochs: int | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    max_epsilon: float | None = None,
    clip_norm: float = 1.0,
    seed: int | None = None,
    noise: str = "reproducible",
    engine: str = "auto",
    micro_batch_size: int | None = None,
    sampling: str = "poisson",
    max_batch_size: int | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    num_workers: int = 0,
    scheduler: LRScheduler | SchedulerFactory | None = None,
    ema: float | AveragedModel | None = None,
    accountant: str = "pld",
    progress: bool | None = None,
    allow_large_delta: bool = False,
    raw: bool = False,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    data_ledger: str | Path | DataLedger | None = None,
    distributed: Distributed = False,
    callbacks: Sequence[Callback] = (),
    spent: Ledger | None = None,
) -> PrivateRun:
    r"""Sets up differentially private training of a model on a data set, with a budget.

    Args:
        model: Any module. It is not wrapped, and only the values of its parameters change.
        rule: A rule of `adamas.rules`, or any `torch.optim` optimizer, over `model.parameters()`. If
            `accelerator.prepare` has wrapped it, the run steps the wrapped rule itself.
        dataset: A map-style data set: `__len__` and `__getitem__`. For nodes of a graph,
            `adamas.graphs.NodeTerms`.
        loss: `loss(model, batch)`, one loss per example, shape `(n,)`. For a model of Hugging Face,
            `adamas.integrations.losses.for_model(model)`.
        batch_size: Expected number of examples of a step, and the divisor of the sum.
        delta: The delta of the guarantee, below 1/N.
        epochs: Passes over the data, ceil(N/batch_size) steps each; or give `steps`.
        steps: Number of steps; or give `epochs`.
        epsilon: The budget, from which the noise multiplier is computed; or give `noise_multiplier`.
        noise_multiplier: Standard deviation of the noise relative to the sensitivity. 0 means no
            privacy, and an infinite epsilon.
        max_epsilon: With `noise_multiplier`: the run stops before it would spend more, even if it has made
            fewer steps.
        clip_norm: Radius to which an example's gradient is clipped, in the rule's geometry.
        seed: A number makes the run reproducible. Whoever knows it can remove the noise: never use one
            number for two runs on the same data. None draws a secret seed from the operating system.
        noise: "reproducible", a function of the seed in floating point, which is open to known attacks on the
            last bits of a release; or "secure", which withstands them: the exact Gaussian mechanism on a
            grid, with noise and sampling from a cryptographic stream, and no seed to give or to save. See
            `adamas.secure_noise`.
        engine: A name in `adamas.engines.ENGINES`, or "auto" for the fastest that accepts the model.
        micro_batch_size: Maximum examples processed at once; does not change the result.
        sampling: A name in `adamas.sampling.SAMPLERS`; for `NodeTerms` "poisson" or "fixed-size".
        max_batch_size: Rows of every batch, for `sampling="truncated-poisson"`.
        collate_fn: Joins a list of examples into a batch of batch-first tensors. Each row must depend on its
            example alone, except for padding by one value. Every batch is compared with the rows that
            collate_fn makes of single examples. A random collate_fn can only be compared in part, and must
            keep the examples apart all the same: augment in the data set instead.
        num_workers: Worker processes that load data.
        scheduler: A learning-rate scheduler of the rule, stepped after each step; or a function that makes
            one of the rule and the number of steps, such as `torch.optim.lr_scheduler.CosineAnnealingLR`.
        ema: Decay of an exponential moving average of the weights, or an `AveragedModel`; see
            `PrivateRun.ema_model`.
        accountant: "pld" (tight) or "rdp" (the papers' values).
        progress: Show a progress bar; None shows it on a terminal.
        allow_large_delta: Accept a delta of 1/N or more, which would allow publishing a record.
        raw: For teaching: keep moments of the gradients before the noise, for `run.diagnostics(raw=True)`.
            The run is then not private. Noise is still added, as `epsilon` or `noise_multiplier` asks, but
            `run.epsilon()` is infinite, and every output says so.
        checkpoint: A file in which the run saves itself; see `adamas.load`.
        checkpoint_every: Steps from one checkpoint to the next, with `checkpoint`.
        resume: Continue the run that `checkpoint` holds, if the file exists. Without `resume` an existing
            file is refused.
        data_ledger: The ledger of the data set, or its file: all runs on the data spend from its budget. This
            run reserves there all releases that it plans, before the first one; see `PrivateRun.close`.
        distributed: True for data-parallel training over the processes that `torchrun` started, or their
            process group. Pass the same arguments on every process; the run deals out each batch.
        callbacks: Functions `callback(run, step)`, called after each step of the iteration; see
            `adamas.callbacks`.
        spent: Earlier releases on the data, such as bounds of its columns. They count towards `epsilon`, and
            the run's ledger contains them. A resumed run counts them once more: releases that are made again
            are new ones.

    Returns:
        A run: iterate over it to train.

    Guarantee:
        All that the run releases is (epsilon, delta)-differentially private under the relation of its
        sampler (adding or removing one example, for Poisson), with `epsilon` as `run.epsilon()` says.
        N is treated as public.

    Example:
        >>> import adamas, torch
        >>> from adamas import rules
        >>> from torch.nn import functional as F
        >>> from torch.utils.data import TensorDataset
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(500, 2)
        >>> data = TensorDataset(x, (x.sum(1) > 0).long())
        >>> model = torch.nn.Linear(2, 2)
        >>> def loss(model, batch):
        ...     x, y = batch
        ...     return F.cross_entropy(model(x), y, reduction="none")
        >>> rule = rules.AdamBC(model.parameters(), lr=0.1)
        >>> run = adamas.make_private(model, rule, data, loss, batch_size=50, epochs=4,
        ...                           noise_multiplier=1.0, delta=1e-4, seed=0)
        >>> for step in run:
        ...     pass
        >>> round(run.epsilon(), 2), bool((model(x).argmax(1) == data.tensors[1]).float().mean() > 0.9)
        (3.85, True)
    """
    given = locals() | {"scheduler": plain_scheduler(scheduler)}
    options = RunOptions(**{one.name: given[one.name] for one in fields(RunOptions)})
    arguments = validated(model, plain_rule(rule), dataset, loss, options)
    probes = probed(arguments)
    if probes.refusal is not None:
        warnings.warn(
            f"engine='auto' takes {probes.engine!r}, which computes each example by itself and is slower. "
            f"{FAST!r} refuses: {probes.refusal}",
            SlowEngineWarning,
            stacklevel=3,  # over the wrapper
        )
    warn_if_evaluating(model)
    return made(arguments, probes, calibrated(arguments))


def made(arguments: Validated, probes: Probed, plan: Plan) -> PrivateRun:
    """Makes the run that the three steps have prepared; continues its checkpoint if there is one."""
    model, rule, options, ranks = arguments.model, arguments.rule, arguments.options, arguments.ranks
    checkpoint, every = options.checkpoint, options.checkpoint_every
    run = PrivateRun(
        model=model,
        rule=rule,
        loss=arguments.loss,
        loader=probes.loader,
        noise=NOISES[options.noise](arguments.seed),
        engine=probes.engine,
        clip_norm=options.clip_norm,
        spending=Spending(
            arguments.sampler,
            plan,
            delta=options.delta,
            accountant=options.accountant,
            data_ledger=arguments.data_ledger,
            ranks=ranks,
            title=type(rule).__name__,
            spent=spent_before(options),
        ),
        scheduler=_scheduler(options.scheduler, rule, plan.steps),
        ema_model=_average(options.ema, model),
        progress=options.progress if ranks is None or ranks.is_writer else False,
        raw=options.raw,
        ranks=ranks,
        checkpoints=None if checkpoint is None else Checkpoints(checkpoint, every),
        callbacks=options.callbacks,
    )
    if checkpoint is not None and Path(checkpoint).exists():
        load(checkpoint, run)
    return run


def _scheduler(
    scheduler: LRScheduler | SchedulerFactory | None, rule: torch.optim.Optimizer, steps: int
) -> LRScheduler | None:
    """Returns the scheduler of the run; a function that makes one is told the number of steps."""
    if scheduler is None or isinstance(scheduler, LRScheduler):
        return scheduler
    return check_scheduler(scheduler(rule, steps), rule)


def _average(ema: float | AveragedModel | None, model: nn.Module) -> AveragedModel | None:
    if isinstance(ema, float):
        return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(ema))  # type: ignore[no-untyped-call]
    return ema
