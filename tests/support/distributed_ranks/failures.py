"""Ranks that disagree, fail or die."""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import adamas
from adamas.distributed import Ranks, write_once
from tests.support.distributed_ranks.pool import WORLD, Failure
from tests.support.distributed_ranks.runs import loss, make_model, make_run, outcome


def fail_in_the_loss(rank, failing_step):
    """Raises in rank 1's loss at one step. Both ranks go on after it, as if the cause had been fixed."""
    broken = []

    def fragile_loss(model, batch):
        if broken and rank == 1:
            raise ZeroDivisionError("the loss of rank 1")
        return loss(model, batch)

    run = make_run(distributed=True, loss=fragile_loss, engine="loop")
    for step in run:
        if step.number == failing_step - 1:
            break
    broken.append(True)
    try:
        next(iter(run))
    except Exception as error:
        failure = Failure(error)
    broken.clear()
    at_failure = (run.steps_done, repr(run.ledger.entries), run.noise.draws)
    return failure, at_failure, outcome(run)["parameters"]


def construct(rank, odd, usual=None):
    """Makes a run with other settings on rank 1."""
    return make_run(distributed=True, **(odd if rank else usual or {})).steps


def construct_unsupported(rank):
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)) if rank else None
    return make_run(distributed=True, model=model)


def drift(rank, how):
    """Changes something on rank 1 only, after two steps."""
    run = make_run(distributed=True)
    for step in run:
        if step.number == 2 and rank == 1:
            if how == "weights":
                with torch.no_grad():
                    run.model[0].weight[0, 0] += 1e-12
            elif how == "lr":
                run.rule.param_groups[0]["lr"] *= 2
            elif how == "noise":
                run.extend(steps=4, noise_multiplier=0.5)
            elif how == "draws":
                run.noise.draws += 1
            else:
                run.state_dict()
                return run.load_state_dict({})
    return run.steps_done


def wrapped_model(rank, how):
    model = make_model()
    if how == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (WORLD,)))
    return make_run(distributed=True, model=model)


def check_device(rank, device):
    return Ranks.of(True).check_device(torch.device(device))


def raw_run(rank):
    return make_run(distributed=True, raw=True)


def end_or_hang(rank, folder, how, timeout):
    """Kills rank 1 in its fourth step, or lets it hang there. Rank 0 writes checkpoints."""
    path = Path(folder) / f"{how}.pt"
    calls = []

    def fatal_loss(model, batch):
        if calls and rank == 1:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(3600)
        return loss(model, batch)

    group = dist.new_group([0, 1], timeout=timedelta(seconds=timeout))
    run = make_run(distributed=group, loss=fatal_loss, engine="loop")
    start = time.monotonic()
    try:
        for step in run:
            write_once(run.ranks, lambda: torch.save(run.state_dict(), path))
            if step.number == 3:
                calls.append(True)
                start = time.monotonic()
    except adamas.DistributedError as error:
        return Failure(error), time.monotonic() - start, run.steps_done
