"""Checkpoints, journals and ledgers on both ranks."""

import io
import os
from pathlib import Path

import torch

from adamas.distributed import write_once
from tests.support.distributed_ranks.runs import make_run, outcome


def save_and_resume(rank, folder, odd=False):
    """Saves after four of six steps, and resumes in a new run. `odd` changes the state on rank 1."""
    path = Path(folder) / f"odd{odd}.pt"
    run = make_run(distributed=True)
    for step in run:
        if step.number == 4:
            break
    written = []

    def write():
        written.append(True)
        torch.save(run.state_dict(), path)

    write_once(run.ranks, write)
    buffer = io.BytesIO()
    torch.save(run.state_dict(), buffer)
    later = make_run(distributed=True)
    state = torch.load(path)
    if odd and rank == 1:
        state["model"]["0.bias"] += 1e-9
    later.load_state_dict(state)
    return len(written), buffer.getvalue(), outcome(later)


def checkpoints_by_itself(rank, folder):
    """Stops after five of six steps, with automatic checkpoints and a data set's ledger, and resumes."""
    options = {
        "checkpoint": Path(folder) / "run.safetensors",
        "checkpoint_every": 2,
        "resume": True,
        "data_ledger": Path(folder) / "data.ledger",
        "distributed": True,
    }
    run = make_run(**options)
    for step in run:
        if step.number == 5:
            break
    journal = Path(folder) / "run.safetensors.journal"
    records = (journal.stat().st_size - 48) // 64  # after a header of 48 bytes
    later = make_run(**options)
    return later.steps_done, records, outcome(later)


def journal_on_a_full_disk(rank, folder):
    """Trains while the disk is full, so that rank 0 cannot write its journal."""
    run = make_run(distributed=True)
    path = Path(folder) / "full.safetensors"
    run.save(path)
    write, os.pwrite = os.pwrite, _no_room
    try:
        for _ in run:
            pass
    finally:
        os.pwrite = write


def _no_room(*arguments):
    raise OSError("No space left on device")


def fail_to_write(rank):
    write_once(make_run(distributed=True).ranks, _no_room)
