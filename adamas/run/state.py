"""The state of a run as plain data: what a checkpoint holds, and what must agree to continue it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from adamas.accounting import Plan
from adamas.graphs.samplers import TermSampler
from adamas.loading import Loader
from adamas.noise import Noise
from adamas.sampling import Shuffled, TruncatedPoisson

_VERSION = 5  # 4 had no account in the data set's ledger


class Stateful(Protocol):
    """The parts of a run that its state is made of."""

    model: nn.Module
    noise: Noise
    loader: Loader
    scheduler: LRScheduler | None
    ema_model: AveragedModel | None
    clip_norm: float

    @property
    def rule(self) -> torch.optim.Optimizer:
        """The optimizer."""

    @property
    def delta(self) -> float:
        """The delta of the guarantee."""

    @property
    def raw(self) -> bool:
        """Whether the run keeps moments without noise."""


def settings_of(run: Stateful, plan: Plan) -> dict[str, Any]:
    """Returns what must agree between a saved run and the one that continues it.

    Args:
        run: The run.
        plan: The plan that it was made with.
    """
    sampler = run.loader.sampler
    return {
        "sampling": type(sampler).__name__,
        "dataset_size": sampler.dataset_size,
        "batch_size": sampler.batch_size,
        "max_batch_size": sampler.max_batch_size if isinstance(sampler, TruncatedPoisson) else None,
        **(_terms(sampler) if isinstance(sampler, TermSampler) else {}),
        "clip_norm": run.clip_norm,
        "delta": run.delta,
        "rule": type(run.rule).__name__,
        "seed": run.noise.seed.given,
        "noise": run.noise.name,
        "raw": run.raw,
        **asdict(plan),
    }


def _terms(sampler: TermSampler) -> dict[str, Any]:
    return {"terms": sampler.terms, "protects": sampler.protects, "terms made with": sampler.made_with}


def state_of(run: Stateful, plan: Plan, spending: dict[str, Any]) -> dict[str, Any]:
    """Returns the state of a run.

    Args:
        run: The run.
        plan: The plan that it was made with.
        spending: The state of its spending.
    """
    return {
        "version": _VERSION,
        "settings": settings_of(run, plan),
        "spending": spending,
        "model": run.model.state_dict(),
        "rule": run.rule.state_dict(),
        "scheduler": None if run.scheduler is None else run.scheduler.state_dict(),
        "ema": None if run.ema_model is None else run.ema_model.state_dict(),
        "noise": run.noise.state_dict(),
    }


def check_state(run: Stateful, plan: Plan, state: Mapping[str, Any]) -> None:
    """Raises unless a run can continue a state; nothing is changed."""
    if state["version"] != _VERSION:
        raise ValueError(f"Expected a state of version {_VERSION}, got {state['version']!r}.")
    saved = state["settings"]
    for name, mine in settings_of(run, plan).items():
        if saved.get(name) != mine:
            raise ValueError(
                f"Expected a state with {name}={mine!r} as in this run, got {saved.get(name)!r}."
            )
    for name, part in (("scheduler", run.scheduler), ("ema", run.ema_model)):
        if (state[name] is None) != (part is None):
            raise ValueError(f"Expected {name}= to be given to both the saved run and this one.")
    _check_same_tensors("model", state["model"], run.model.state_dict())
    _check_same_options(state["rule"]["param_groups"], run.rule.param_groups)
    if run.ema_model is not None:
        _check_same_tensors("ema", state["ema"], run.ema_model.state_dict())
    sampler = run.loader.sampler
    within_epoch = state["spending"]["steps_done"] % sampler.steps_per_epoch()
    if isinstance(sampler, Shuffled) and sampler.seed.given is None and within_epoch:
        raise ValueError(
            "Expected seed= for a shuffled run that resumes within an epoch: without it the rest of the "
            "permutation is unknown, and records would take part twice."
        )


def restore(run: Stateful, state: Mapping[str, Any]) -> None:
    """Loads all of a state that was checked, except the spending."""
    run.model.load_state_dict(state["model"])
    run.rule.load_state_dict(state["rule"])
    if run.scheduler is not None:
        run.scheduler.load_state_dict(state["scheduler"])
    if run.ema_model is not None:
        run.ema_model.load_state_dict(state["ema"])
    run.noise.load_state_dict(state["noise"])


def _check_same_options(saved: Sequence[Mapping[str, Any]], mine: Sequence[Mapping[str, Any]]) -> None:
    """Raises unless both rules have the same hyperparameters; learning rates may differ."""
    if len(saved) != len(mine):
        raise ValueError(
            f"Expected the state of a rule with {len(mine)} groups of parameters, got {len(saved)}."
        )
    for theirs, ours in zip(saved, mine, strict=True):
        if len(theirs["params"]) != len(ours["params"]):
            raise ValueError(
                "Expected the state of a rule whose groups have as many parameters as this one's."
            )
        for name in sorted({*theirs, *ours} - {"params", "lr", "initial_lr"}):
            a, b = theirs.get(name), ours.get(name)
            if (list(a) if isinstance(a, tuple) else a) != (list(b) if isinstance(b, tuple) else b):
                raise ValueError(f"Expected the state of a rule with {name}={b!r}, got {a!r}.")


def _check_same_tensors(name: str, saved: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    """Raises unless both have tensors of the same names, shapes and types."""
    for key in [*mine, *saved]:
        a, b = saved.get(key), mine.get(key)
        if a is None or b is None:
            raise ValueError(f"Expected the state of this {name}, but only one of them has {key}.")
        if isinstance(a, Tensor) and (a.shape != b.shape or a.dtype != b.dtype):
            raise ValueError(
                f"Expected the state of this {name}, with {key} of shape {tuple(b.shape)} and {b.dtype}, got "
                f"{tuple(a.shape)} and {a.dtype}."
            )
