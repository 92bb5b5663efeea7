"""Unwraps the rule and the scheduler that `accelerate` has prepared, and refuses other wrappers.

A wrapper decides whether and how often `step()` reaches the rule, so steps could differ from the releases
that are charged. So the run uses the rule itself. The wrapper shares its state.
"""

import sys
from typing import Any

from torch.optim import Optimizer

from adamas.rules.base import Rule

_PLAIN = "Pass the rule and the scheduler as they were before accelerator.prepare"


def plain_rule(rule: Any) -> Any:
    """Returns the rule that `accelerator.prepare` has wrapped; anything else as it is.

    Raises:
        TypeError: If a wrapper does more than call the rule, or is unknown.
    """
    accelerate = sys.modules.get("accelerate.optimizer")  # nothing is prepared before it is imported
    if accelerate is not None and isinstance(rule, accelerate.AcceleratedOptimizer):
        _check_does_nothing(rule, type(rule) is accelerate.AcceleratedOptimizer and rule.scaler is None)
        return plain_rule(rule.optimizer)
    if isinstance(rule, Optimizer):
        inner = next((part for part in vars(rule).values() if isinstance(part, Optimizer)), None)
        if inner is not None and (isinstance(inner, Rule) or not _is_complete(rule)):
            raise TypeError(
                f"Expected rule to be an optimizer that steps by itself, got a {type(rule).__name__} around "
                f"{type(inner).__name__}: a wrapper would not hand it the release. Pass the inner optimizer."
            )
    return rule


def plain_scheduler(scheduler: Any) -> Any:
    """Returns the scheduler that `accelerator.prepare` has wrapped; anything else as it is.

    Raises:
        TypeError: If the wrapper does more than call the scheduler.
    """
    accelerate = sys.modules.get("accelerate.scheduler")
    if accelerate is None or not isinstance(scheduler, accelerate.AcceleratedScheduler):
        return scheduler
    _check_does_nothing(scheduler, type(scheduler) is accelerate.AcceleratedScheduler)
    inner = scheduler.scheduler
    optimizer = getattr(inner, "optimizer", None)
    if plain_rule(optimizer) is not optimizer:
        raise TypeError(
            "Expected a scheduler of the rule itself, got a scheduler of the wrapper that "
            "accelerator.prepare returned, which the run does not step. Build it on the rule before prepare."
        )
    return inner


def _check_does_nothing(prepared: Any, plain: bool) -> None:
    """Raises unless a prepared object passes every step on, once."""
    processes = sys.modules["accelerate.state"].AcceleratorState().num_processes
    accumulated = prepared.gradient_state.num_steps
    name = type(prepared).__name__
    if not plain:
        raise TypeError(
            f"Expected a rule and a scheduler that step whenever they are called, got a prepared {name} that "
            f"scales gradients or shards them. {_PLAIN}, without mixed_precision='fp16' and plugins."
        )
    if processes > 1:
        raise TypeError(
            f"Expected rule and scheduler as they were made on each of {processes} ranks, got a prepared "
            f"{name}. {_PLAIN}, the plain model (accelerator.unwrap_model), and distributed=True: the run "
            "deals out the batches and adds up the clipped sums."
        )
    if accumulated > 1:
        raise TypeError(
            f"Expected gradient_accumulation_steps=1 of the Accelerator, got {accumulated}: each step of the "
            "run is a whole batch. Set batch_size to its size, and micro_batch_size to what fits the memory."
        )


def _is_complete(rule: Optimizer) -> bool:
    """Tells whether torch has initialised an optimizer, so that it does not only look like one."""
    return {"_optimizer_step_pre_hooks", "_optimizer_load_state_dict_post_hooks"} <= vars(rule).keys()
