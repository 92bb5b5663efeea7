"""Preconditions of a run: checks of the model and its rule."""

import sys

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from adamas.engines import trainable_parameters
from adamas.errors import UnsupportedError
from adamas.geometry import check_real


def check_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raises unless the optimizer updates exactly the trainable parameters of the model."""
    named = trainable_parameters(model)
    if not named:
        raise ValueError(
            f"Expected {type(model).__name__} to have a trainable parameter, but none requires a gradient."
        )
    for name, p in named.items():
        check_real(p, repr(name))
    for name, p in named.items():
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            raise UnsupportedError(
                f"The parameter {name!r} has a gradient hook, which would see gradients without noise. "
                "Remove it (wandb.watch and WANDB_WATCH make such hooks); after release.write_to(rule) the "
                "private gradient is in p.grad."
            )
    held = {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    for name, p in named.items():
        if p not in held:
            raise ValueError(
                f"Expected the rule to hold the model's parameter {name!r}, which requires a gradient. Build "
                "the rule from model.parameters(), or freeze the parameter with requires_grad_(False)."
            )
    if len(held) > len(named):
        raise ValueError(
            f"Expected the rule to hold the model's {len(named)} trainable parameters only, but it has "
            f"{len(held) - len(named)} more that are not the model's. Build it from model.parameters()."
        )


def check_modules(model: nn.Module) -> None:
    """Raises if a module mixes the examples of a batch."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):
            raise UnsupportedError(
                f"{name or 'the model'} is a {type(module).__name__} that normalises over the batch, so an "
                "example's gradient depends on the others and no clipping bounds its influence. Replace it "
                "by GroupNorm, LayerNorm or InstanceNorm, or freeze its statistics with .eval()."
            )


def check_whole(model: nn.Module) -> None:
    """Raises if the model is wrapped for distributed training, or its parameters are sharded."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel) or (
            kind == "FullyShardedDataParallel"
        ):
            raise UnsupportedError(
                f"{name or 'the model'} is wrapped by {kind}, which would average or shard gradients before "
                "they are clipped. Pass the plain module, on every rank, with distributed=True: it "
                "is model.module, or accelerator.unwrap_model(model)."
            )
    sharded = sys.modules.get("torch.distributed.tensor")  # slow to import; no DTensor exists before
    for name, p in model.named_parameters():
        if sharded is not None and isinstance(p, sharded.DTensor):
            raise UnsupportedError(
                f"{name!r} is a DTensor, sharded by fully_shard or a device mesh: an example's norm runs "
                "over its whole gradient, and sharding swaps the weights while the model runs, so that the "
                "engines would not find the parameters. Pass the plain module, on every rank, with "
                "distributed=True."
            )
