"""`make_private`: the convenient front for sampling, engine, door, ledger and rule."""

import warnings
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset

from adamas import _validate
from adamas._guards.collate import MOST_EXAMPLES, check_collate, padded_and_alone
from adamas._guards.state import Watch, unchanged
from adamas._streams import Seed
from adamas.accounting import Plan, Spending, calibrate
from adamas.accounting.budget import Budget
from adamas.accounting.data_ledger import DataLedger
from adamas.accounting.ledger import ACCOUNTANTS, supports
from adamas.distributed import Distributed, Ranks, raises_together
from adamas.engines import ENGINES, FAST, READS_VALUES, Loss, trainable_parameters
from adamas.engines.probes import PADDED_EXAMPLES, PROBE_EXAMPLES, check_loss, compare_alone, compare_padded
from adamas.errors import SlowEngineWarning, UnsupportedError
from adamas.geometry import Geometry
from adamas.loading import Batch, Loader, dataset_length
from adamas.run.checkpoint import Checkpoints, load
from adamas.run.loop import PrivateRun, model_randomness
from adamas.run.preconditions import check_modules, check_parameters, check_whole
from adamas.run.rule_state import RuleState
from adamas.sampling import SAMPLERS, Draw, Sampler, TruncatedPoisson
from adamas.secure_noise import NOISES, SecureNoise


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
    scheduler: LRScheduler | None = None,
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
) -> PrivateRun:
    r"""Sets up differentially private training of a model on a data set, with a budget.

    Args:
        model: Any module; it is neither wrapped nor changed, but for its parameters' values.
        rule: A rule of `adamas.rules`, or any `torch.optim` optimizer, over `model.parameters()`.
        dataset: A map-style data set: `__len__` and `__getitem__`.
        loss: `loss(model, batch)`, one loss per example, shape `(n,)`.
        batch_size: Expected number of examples of a step, and the divisor of the sum.
        delta: The delta of the guarantee, below 1/N.
        epochs: Passes over the data, ceil(N/batch_size) steps each; or give `steps`.
        steps: Number of steps; or give `epochs`.
        epsilon: The budget, from which the noise multiplier is computed; or give `noise_multiplier`.
        noise_multiplier: Standard deviation of the noise relative to the sensitivity. 0 means no
            privacy, and an infinite epsilon.
        max_epsilon: With `noise_multiplier`: the run ends before it would spend more, if need be after fewer
            steps.
        clip_norm: Radius to which an example's gradient is clipped, in the rule's geometry.
        seed: A number makes the run reproducible, and whoever knows it can remove the noise: never
            use one number for two runs on the same data. None takes a secret one from the operating
            system.
        noise: "reproducible", a function of the seed in floating point, which known attacks on the last bits
            of a release apply to; or "secure", which they do not: the exact Gaussian mechanism on a grid,
            with noise and sampling from a cryptographic stream, and no seed to give or to save. See
            `adamas.secure_noise`.
        engine: A name in `adamas.engines.ENGINES`, or "auto" for the fastest that accepts the model.
        micro_batch_size: Most examples that are processed at a time; does not change the result.
        sampling: A name in `adamas.sampling.SAMPLERS`.
        max_batch_size: Rows of every batch, for `sampling="truncated-poisson"`.
        collate_fn: Joins a list of examples into a batch of batch-first tensors. Each row must be a function
            of its example alone, but for padding by one value; every batch is compared with what collate_fn
            makes of single examples. One that is random is compared as far as that shows anything, and must
            keep the examples apart all the same: better augment in the data set.
        num_workers: Worker processes that load data.
        scheduler: A learning-rate scheduler of the rule, stepped after each step.
        ema: Decay of an exponential moving average of the weights, or an `AveragedModel`; see
            `PrivateRun.ema_model`.
        accountant: "pld" (tight) or "rdp" (the papers' values).
        progress: Show a progress bar; None shows it on a terminal.
        allow_large_delta: Accept a delta of 1/N or more, which permits publishing a record.
        raw: For teaching: keep moments of the gradients before the noise, for `run.diagnostics(raw=True)`.
            The run is then not private. Noise is added all the same, as `epsilon` or `noise_multiplier`
            asks, but `run.epsilon()` is infinite, and every output says so.
        checkpoint: A file in which the run saves itself; see `adamas.load`.
        checkpoint_every: Steps from one checkpoint to the next, with `checkpoint`.
        resume: Continue the run that `checkpoint` holds, if the file exists. Without it an existing file is
            refused.
        data_ledger: The ledger of the data set, or its file: all runs on the data spend from its budget. What
            this run plans to release is reserved there before its first release; see `PrivateRun.close`.
        distributed: True for data-parallel training over the processes that `torchrun` started, or their
            process group. All arguments must be the same on all of them; the run deals out each batch.

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
    ranks = Ranks.of(distributed)
    if not isinstance(model, nn.Module):
        raise TypeError(f"Expected model to be a torch.nn.Module, got {type(model).__name__}.")
    if not isinstance(rule, torch.optim.Optimizer):
        raise TypeError(f"Expected rule to be a torch.optim.Optimizer, got {type(rule).__name__}.")
    if isinstance(rule, torch.optim.LBFGS):
        raise TypeError(
            "Expected a rule that needs one gradient per step, got LBFGS, which asks for several."
        )
    if not callable(loss):
        raise TypeError(f"Expected loss to be a function loss(model, batch), got {loss!r}.")
    n = dataset_length(dataset)
    _validate.count(batch_size=batch_size)
    _exactly_one(epochs=epochs, steps=steps)
    _exactly_one(epsilon=epsilon, noise_multiplier=noise_multiplier)
    _validate.count(**{k: v for k, v in {"epochs": epochs, "steps": steps}.items() if v is not None})
    if epsilon is not None:
        _validate.positive(epsilon=epsilon)
    if noise_multiplier is not None:
        _validate.noise_multiplier(noise_multiplier=noise_multiplier)
    _validate.delta(delta=delta)
    if delta >= 1 / n and not allow_large_delta:
        raise ValueError(
            f"Expected delta={delta!r} < 1/N = {1 / n:.3g} for N = {n} examples: with more, publishing a "
            "random record would count as private. Lower delta, or confirm with allow_large_delta=True."
        )
    _validate.positive_or_inf(clip_norm=clip_norm)
    if not isinstance(raw, bool):
        raise TypeError(f"Expected raw={raw!r} to be True or False.")
    if raw and ranks is not None:
        raise ValueError(
            "Expected raw=False with distributed=: moments without noise are kept in one process only. Leave "
            "out distributed=."
        )
    if clip_norm == float("inf") and noise_multiplier != 0:
        raise ValueError("Expected a finite clip_norm: noise cannot hide a gradient of any length.")
    _validate.one_of(["auto", *ENGINES], engine=engine)
    _validate.one_of(ACCOUNTANTS, accountant=accountant)
    _validate.one_of(NOISES, noise=noise)
    if scheduler is not None and scheduler.optimizer is not rule:
        raise ValueError("Expected scheduler to be built on the rule that the run uses.")
    if isinstance(scheduler, ReduceLROnPlateau):
        raise TypeError(
            "Expected a scheduler that needs no metric, got ReduceLROnPlateau: a training loss is not "
            "private. Step it yourself with the loss on public data."
        )
    if max_epsilon is not None:
        _validate.positive(max_epsilon=max_epsilon)
        if noise_multiplier is None:
            raise ValueError("Expected max_epsilon with noise_multiplier only: epsilon is a limit itself.")
    _check_checkpoint(checkpoint, checkpoint_every, resume)
    if isinstance(ema, float):
        _validate.decay(ema=ema)
    elif ema is not None and not isinstance(ema, AveragedModel):
        raise TypeError(f"Expected ema={ema!r} to be a decay or a torch AveragedModel.")
    if isinstance(ema, AveragedModel):
        shapes = [[p.shape for p in m.parameters()] for m in (ema.module, model)]
        if shapes[0] != shapes[1]:
            raise ValueError("Expected ema to be an AveragedModel of this model.")
    if data_ledger is not None and not isinstance(data_ledger, DataLedger):
        data_ledger = DataLedger(data_ledger)
    secret = Seed(seed, secure=noise == SecureNoise.name)
    sampler = _sampler(sampling, n, batch_size, max_batch_size, secret)
    if data_ledger is not None and data_ledger.relation != sampler.relation:
        raise ValueError(
            f"Expected sampling={sampling!r} under the relation of the data_ledger, "
            f"{data_ledger.relation.name}, but its relation is {sampler.relation.name}."
        )
    RuleState.of(rule)
    check_whole(model)
    check_parameters(model, rule)
    check_modules(model)

    device = next(iter(trainable_parameters(model).values())).device
    if ranks is not None:
        ranks.check_device(device)
    loader = Loader(
        dataset,
        sampler,
        collate_fn=collate_fn,
        micro_batch_size=micro_batch_size,
        num_workers=num_workers,
        device=device,
        rank=0 if ranks is None else ranks.rank,
        world_size=1 if ranks is None else ranks.world_size,
    )
    with unchanged(model, loss), model_randomness(secret, 0):
        size = min(n, micro_batch_size or batch_size, MOST_EXAMPLES)
        check_collate(loader, np.linspace(0, n - 1, size).astype(int).tolist())
        rows = np.arange(min(n, PROBE_EXAMPLES))
        sample = loader.check(loader.fetch(rows), rows)
        check_loss(model, loss, sample)
        spread = np.linspace(0, n - 1, min(n, PADDED_EXAMPLES)).astype(int)
        for micro in Batch(0, Draw(spread), loader, None).micro_batches():
            padded = padded_and_alone(micro.data, micro.sizes, PADDED_EXAMPLES)
            if padded is not None:
                compare_padded(model, loss, *padded)
        engine, refusal = _chosen_engine(engine, model, loss, sample)
    if refusal is not None:
        warnings.warn(
            f"engine='auto' takes {engine!r}, which computes each example by itself and is slower. {FAST!r} "
            f"refuses: {refusal}",
            SlowEngineWarning,
            stacklevel=2,
        )
    if steps is None:
        assert epochs is not None
        steps = epochs * sampler.steps_per_epoch()
    total = steps
    if not supports(accountant, sampler.plan(1.0, 1), sampler.relation):
        raise UnsupportedError(
            f"accountant={accountant!r} has no bound for sampling={sampling!r}. Use accountant='pld'."
        )
    if noise_multiplier is None:
        assert epsilon is not None
        noise_multiplier = calibrate.noise_multiplier_for(
            lambda z: sampler.plan(z, total),
            epsilon=epsilon,
            delta=delta,
            accountant=accountant,
            relation=sampler.relation,
        )
    if max_epsilon is not None:
        total = _affordable_steps(sampler, noise_multiplier, total, max_epsilon, delta, accountant)
    if isinstance(ema, float):
        ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(ema))  # type: ignore[no-untyped-call]
    run = PrivateRun(
        model=model,
        rule=rule,
        loss=loss,
        loader=loader,
        noise=NOISES[noise](secret),
        engine=engine,
        clip_norm=clip_norm,
        spending=Spending(
            sampler,
            Plan(total, noise_multiplier, _limit(epsilon, max_epsilon, raw)),
            delta=delta,
            accountant=accountant,
            data_ledger=data_ledger,
            ranks=ranks,
            title=type(rule).__name__,
        ),
        scheduler=scheduler,
        ema_model=ema,
        progress=progress if ranks is None or ranks.is_writer else False,
        raw=raw,
        ranks=ranks,
    )
    if checkpoint is not None:
        run.checkpoints = Checkpoints(checkpoint, checkpoint_every)
        if Path(checkpoint).exists():
            load(checkpoint, run)
    return run


def _limit(epsilon: float | None, max_epsilon: float | None, raw: bool) -> float | None:
    """Returns what a run may spend: with `raw` it is not private, and has no budget to keep."""
    return None if raw else max_epsilon if epsilon is None else epsilon


def _exactly_one(**values: object) -> None:
    given = [name for name, value in values.items() if value is not None]
    if len(given) != 1:
        first, second = values
        raise ValueError(
            f"Expected exactly one of {first} and {second}, got {' and '.join(given) or 'neither'}."
        )


def _check_checkpoint(checkpoint: str | Path | None, every: int | None, resume: bool) -> None:
    if (checkpoint is None) != (every is None):
        raise ValueError(
            f"Expected both checkpoint and checkpoint_every or neither, got checkpoint={checkpoint!r} and "
            f"checkpoint_every={every!r}."
        )
    if checkpoint is None or every is None:
        if resume:
            raise ValueError("Expected checkpoint with resume=True: the file to continue from.")
        return
    _validate.count(checkpoint_every=every)
    if Path(checkpoint).exists() and not resume:
        raise ValueError(
            f"Expected checkpoint={str(checkpoint)!r} not to exist. Continue it with resume=True, or choose "
            "another file."
        )


def _affordable_steps(
    sampler: Sampler, noise_multiplier: float, steps: int, epsilon: float, delta: float, accountant: str
) -> int:
    """The largest number of steps, up to `steps`, whose epsilon is at most the budget."""
    if noise_multiplier == 0:
        raise ValueError("Expected noise_multiplier > 0 with max_epsilon: without noise epsilon is infinite.")
    budget = Budget(epsilon, delta, accountant, sampler.relation)
    units = budget.most(sampler.event({0: [noise_multiplier]}), sampler.unit(steps - 1) + 1)
    if units == 0:
        raise ValueError(
            f"Expected max_epsilon={epsilon!r} to pay for one step at least; with noise_multiplier="
            f"{noise_multiplier!r} it does not. Raise one of them."
        )
    return bisect_left(range(steps), units, key=sampler.unit)


def _sampler(sampling: str, n: int, batch_size: int, max_batch_size: int | None, seed: Seed) -> Sampler:
    _validate.one_of(SAMPLERS, sampling=sampling)
    if (max_batch_size is not None) != (sampling == "truncated-poisson"):
        raise ValueError(
            f"Expected max_batch_size together with sampling='truncated-poisson' and only then, got "
            f"max_batch_size={max_batch_size!r} and sampling={sampling!r}."
        )
    if max_batch_size is not None:
        return TruncatedPoisson(n, batch_size, max_batch_size, seed)
    return SAMPLERS[sampling](n, batch_size, seed)


def _chosen_engine(
    engine: str, model: nn.Module, loss: Loss, sample: Any
) -> tuple[str, UnsupportedError | None]:
    """The first engine that accepts model and loss on a few examples, and why it is not the fast one."""
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
            refusal = refusal or error
            if name == names[-1]:
                raise
        else:
            return name, refusal
    raise AssertionError("ENGINES is empty.")
