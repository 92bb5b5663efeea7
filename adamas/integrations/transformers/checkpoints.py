"""Resumes a training, only from a checkpoint with its ledger and the rule's state that belongs to it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import get_last_checkpoint

from adamas._guards.kept_values import same_bits
from adamas.integrations.transformers.training import RUN_FILE

OPTIMIZER_FILE, SCHEDULER_FILE = "optimizer.pt", "scheduler.pt"


def folder_to_resume(trainer: Trainer, resume_from_checkpoint: str | bool | None) -> str | None:
    """Returns the folder to continue from; None for none.

    Raises:
        FileNotFoundError: If it does not hold a run with its ledger, or was not saved to the end.
    """
    if not resume_from_checkpoint:
        return None
    folder = resume_from_checkpoint
    if folder is True:
        folder = get_last_checkpoint(trainer.args.output_dir)  # type: ignore[no-untyped-call]
        if folder is None:
            raise FileNotFoundError(
                f"Expected a checkpoint in output_dir={trainer.args.output_dir!r}, found none."
            )
    if not (Path(folder) / RUN_FILE).is_file():
        raise FileNotFoundError(
            f"Expected {RUN_FILE} in {folder}: without its ledger the releases behind these weights "
            "are unknown, and epsilon would be too low. Resume from a checkpoint of a private trainer "
            "(without save_only_model), or train anew and account for the earlier training yourself. If its "
            "save was interrupted, delete the folder, and resume from the one before."
        )
    if not (Path(folder) / TRAINER_STATE_NAME).is_file():
        raise FileNotFoundError(
            f"Expected {TRAINER_STATE_NAME} in {folder}: its save was interrupted. Delete the folder, and "
            "resume from the one before."
        )
    return str(folder)


def check_rule_state(folder: str | Path, rule: torch.optim.Optimizer) -> None:
    """Raises if a checkpoint's `optimizer.pt` is not the state of the rule that its run has saved."""
    file = Path(folder) / OPTIMIZER_FILE
    if not file.is_file():
        return
    theirs = torch.load(file, map_location="cpu", weights_only=True)
    if not _same(theirs, rule.state_dict()):
        raise ValueError(
            f"Expected {file} to be the state of the rule that {RUN_FILE} holds, but they differ: it comes "
            "from another training, whose releases are not in this ledger. Delete it, to continue the run as "
            f"{RUN_FILE} has it, or restore the whole folder."
        )


def load_schedule(folder: str | Path, scheduler: Any) -> None:
    """Restores the position of the learning-rate schedule."""
    file = Path(folder) / SCHEDULER_FILE
    if not file.is_file():
        raise FileNotFoundError(f"Expected {SCHEDULER_FILE} in {folder}. Restore the whole folder.")
    scheduler.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))


def _same(a: Any, b: Any) -> bool:
    """Tells whether two states are equal, tensors bit for bit and wherever they are."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return same_bits(a.cpu(), b.cpu())
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)
