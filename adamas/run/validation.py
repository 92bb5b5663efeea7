"""The first step of `make_private`: all that can be checked without looking at an example's gradient."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import Dataset

from adamas._guards.datasets import check_dataset
from adamas._streams import Seed
from adamas._words import rounded_up
from adamas.accounting.data_ledger import DataLedger
from adamas.distributed import Ranks
from adamas.engines import Loss
from adamas.graphs import NodeTerms
from adamas.graphs.guard import check_no_graph
from adamas.loading import dataset_length
from adamas.run.arguments import check_types
from adamas.run.options import RunOptions, check_needs_no_metric
from adamas.run.preconditions import check_modules, check_parameters, check_whole
from adamas.run.rule_state import RuleState
from adamas.sampling import SAMPLERS, Sampler, TruncatedPoisson
from adamas.secure_noise import SecureNoise


@dataclass(frozen=True)
class Validated:
    """Arguments of `make_private` that fit together.

    Attributes:
        model: As given.
        rule: As given.
        dataset: As given.
        loss: As given.
        options: As given.
        seed: The seed of sampling and noise.
        sampler: Draws the batches.
        data_ledger: The ledger of the data set; None for none.
        ranks: The processes of a data-parallel run; None for one process.
    """

    model: nn.Module
    rule: torch.optim.Optimizer
    dataset: Dataset[Any]
    loss: Loss
    options: RunOptions
    seed: Seed
    sampler: Sampler
    data_ledger: DataLedger | None
    ranks: Ranks | None


def validated(
    model: nn.Module,
    rule: torch.optim.Optimizer,
    dataset: Dataset[Any],
    loss: Loss,
    options: RunOptions,
) -> Validated:
    """Checks the arguments of `make_private` against one another."""
    ranks = Ranks.of(options.distributed)
    check_types(model, rule, loss)
    if not isinstance(dataset, NodeTerms):
        check_dataset(dataset)
    check_no_graph(dataset, model, loss)
    n = dataset.protected_nodes if isinstance(dataset, NodeTerms) else dataset_length(dataset)
    if options.delta >= 1 / n and not options.allow_large_delta:
        raise ValueError(
            f"Expected delta={options.delta!r} < 1/N = {1 / n:.3g} for N = {n} examples: with more, "
            "publishing a random record would count as private. Lower delta, or confirm with "
            "allow_large_delta=True."
        )
    if options.raw and ranks is not None:
        raise ValueError(
            "Expected raw=False with distributed=: moments without noise are kept in one process only. Leave "
            "out distributed=."
        )
    if isinstance(options.scheduler, LRScheduler):
        check_scheduler(options.scheduler, rule)
    _check_no_other_run(options)
    if isinstance(options.ema, AveragedModel):
        shapes = [[p.shape for p in m.parameters()] for m in (options.ema.module, model)]
        if shapes[0] != shapes[1]:
            raise ValueError("Expected ema to be an AveragedModel of this model.")
    seed = Seed(options.seed, secure=options.noise == SecureNoise.name)
    sampler = make_sampler(
        dataset, options.sampling, options.batch_size, seed, max_batch_size=options.max_batch_size
    )
    data_ledger = _data_ledger(options, sampler)
    _check_spent(options, sampler)
    RuleState.of(rule)
    check_whole(model)
    check_parameters(model, rule)
    check_modules(model)
    return Validated(model, rule, dataset, loss, options, seed, sampler, data_ledger, ranks)


def check_scheduler(scheduler: object, rule: torch.optim.Optimizer) -> LRScheduler:
    """Returns a scheduler that the run can step after each step of its rule; raises for another one."""
    if not isinstance(scheduler, LRScheduler):
        raise TypeError(
            f"Expected scheduler(rule, steps) to return a learning-rate scheduler of torch, got "
            f"{type(scheduler).__name__}."
        )
    check_needs_no_metric(scheduler)
    if scheduler.optimizer is not rule:
        raise ValueError(
            "Expected scheduler to be built on the rule that the run uses, got one of another optimizer. "
            "Build it on the rule itself, before accelerator.prepare."
        )
    return scheduler


def _check_no_other_run(options: RunOptions) -> None:
    if options.checkpoint is not None and Path(options.checkpoint).exists() and not options.resume:
        raise ValueError(
            f"Expected checkpoint={str(options.checkpoint)!r} not to exist. Continue it with resume=True, or "
            "choose another file."
        )


def make_sampler(
    dataset: Dataset[Any],
    sampling: str,
    batch_size: int,
    seed: Seed | None = None,
    *,
    max_batch_size: int | None = None,
) -> Sampler:
    """Makes what draws the batches of a data set, and accounts for them.

    Args:
        dataset: The data set.
        sampling: A name in `adamas.run.options.SAMPLINGS`.
        batch_size: Expected number of examples of a batch.
        seed: Where the draws come from.
        max_batch_size: Rows of every batch, for truncated batches.
    """
    if isinstance(dataset, NodeTerms):
        return dataset.sampler(sampling, batch_size, seed)
    if sampling not in SAMPLERS:
        raise ValueError(
            f"Expected sampling among {sorted(SAMPLERS)}, got {sampling!r}, which is for NodeTerms only."
        )
    n = dataset_length(dataset)
    if max_batch_size is not None:
        return TruncatedPoisson(n, batch_size, max_batch_size, seed)
    return SAMPLERS[sampling](n, batch_size, seed)


def _check_spent(options: RunOptions, sampler: Sampler) -> None:
    spent = options.spent
    if spent is None:
        return
    if spent.relation != sampler.relation:
        raise ValueError(
            f"Expected spent= under the relation of sampling={options.sampling!r}, {sampler.relation.name}, "
            f"but its relation is {spent.relation.name}."
        )
    limit = options.epsilon if options.epsilon is not None else options.max_epsilon
    if limit is not None:
        before = spent.epsilon(options.delta, options.accountant)
        if before >= limit:
            raise ValueError(
                f"Expected epsilon={limit!r} above what spent= holds already, {rounded_up(before)} at "
                f"delta={options.delta:g}. Raise epsilon, or release less before the training."
            )


def _data_ledger(options: RunOptions, sampler: Sampler) -> DataLedger | None:
    ledger = options.data_ledger
    if ledger is None:
        return None
    if not isinstance(ledger, DataLedger):
        ledger = DataLedger(ledger)
    if ledger.relation != sampler.relation:
        raise ValueError(
            f"Expected sampling={options.sampling!r} under the relation of the data_ledger, "
            f"{ledger.relation.name}, but its relation is {sampler.relation.name}."
        )
    return ledger
