"""Keeps the private run of a Lightning checkpoint next to it: a file of `run.save`, and its journal.

A checkpoint names its run. The run is written first, under a new name at each step. So a crash in between
leaves the older checkpoint with the older run, whose journal lists all releases until the crash.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from adamas._storage.files import folder_to_disk
from adamas.run import PrivateRun
from adamas.run.checkpoint import Checkpoints

KEY = "adamas"
"""Where a checkpoint names its run."""

FOLDER = "adamas_runs"
"""The folder of runs, next to the checkpoints."""


def check_local(path: str | Path, name: str) -> None:
    """Raises unless a path is on the local file system, where a journal can be synced."""
    if "://" in str(path):
        raise ValueError(
            f"Expected {name}={str(path)!r} to be a local folder: each release is written to a journal next "
            "to the checkpoint before it is made. Save locally, and copy the files afterwards."
        )


def save(
    run: PrivateRun, checkpoint: Mapping[str, Any], path: str | Path, write: Callable[[dict[str, Any]], None]
) -> None:
    """Writes a checkpoint together with its run.

    Args:
        run: The run.
        checkpoint: What Lightning saves. If it has weights only, it is written without a run.
        path: The file of the checkpoint.
        write: Writes the checkpoint.

    Raises:
        RuntimeError: If a step has begun and not ended.
    """
    check_local(path, "ckpt_path")
    place = Path(os.path.abspath(path))
    about = {"epsilon": run.epsilon_bound(), "delta": run.delta, "steps_done": run.steps_done}
    if "optimizer_states" not in checkpoint:
        write({**checkpoint, KEY: about})
        return
    if checkpoint["global_step"] != run.steps_done:
        raise RuntimeError(
            f"Expected a checkpoint between two steps, got one during step {run.steps_done}, as after an "
            "exception or Ctrl-C: its release is charged, but the Trainer has not finished the step, so "
            "nothing could continue here. Continue the checkpoint before it, whose journal lists the release."
        )
    file = place.parent / FOLDER / f"{place.name}.{run.steps_done}.safetensors"
    run.save(file)
    write({**checkpoint, KEY: {**about, "run": f"{FOLDER}/{file.name}"}})
    with place.open("rb") as written:
        os.fsync(written.fileno())  # Lightning does not, and the older run goes now
    folder_to_disk(place.parent)
    for other in _runs_of(place):
        if other != file:
            Checkpoints(other).remove()


def find(checkpoint: Mapping[str, Any], path: str | Path) -> Path:
    """Returns the file of the run that a checkpoint names.

    Raises:
        ValueError: If it names none: what was spent before is unknown.
        FileNotFoundError: If the file is not there.
    """
    run = checkpoint.get(KEY, {}).get("run")
    if run is None:
        kind = "with weights only" if KEY in checkpoint else "without a private run"
        raise ValueError(
            f"Expected ckpt_path={str(path)!r} to be a checkpoint of PrivateTraining with its ledger, got "
            f"one {kind}: what its training has spent is unknown, so epsilon would be too low. Continue a "
            "checkpoint that PrivateTraining wrote with its optimizer. To start from public weights, load "
            "them into the module before trainer.fit."
        )
    file = Path(os.path.realpath(path)).parent / str(run)
    if not file.exists():
        raise FileNotFoundError(
            f"The run of the checkpoint is missing: {file}. It holds the ledger. Keep the folder {FOLDER!r} "
            "next to the checkpoint."
        )
    return file


def remove(path: str | Path) -> None:
    """Deletes the runs of a checkpoint that was deleted."""
    for file in _runs_of(Path(os.path.abspath(path))):
        Checkpoints(file).remove()


def _runs_of(place: Path) -> Iterator[Path]:
    start, end = f"{place.name}.", ".safetensors"
    for file in sorted((place.parent / FOLDER).glob(f"*{end}")):
        if file.name.startswith(start) and file.name[len(start) : -len(end)].isdigit():
            yield file
