"""Trains from settings to files, as `adamas train` does."""

import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from adamas import _validate
from adamas._storage.archive import write_tensors
from adamas._storage.files import own_folder, replace_text
from adamas._storage.results import Write, json_writer, text_writer, write_results
from adamas._version import __version__
from adamas.check import Unusable, count_unusable
from adamas.data import Data
from adamas.experiment.settings import (
    CHECKPOINT,
    DIAGNOSTICS,
    JOURNAL,
    LEDGER,
    MODEL,
    RESULT,
    SETTINGS,
    Settings,
)
from adamas.experiment.tables import check_has_rows, is_table, table_scores
from adamas.experiment.task import (
    PUBLISHED_WEIGHTS,
    accuracy,
    cross_entropy,
    initial_model,
    squared_error,
    task,
)
from adamas.rules import RULES
from adamas.run.checkpoint import Checkpoints
from adamas.run.loop import PrivateRun
from adamas.run.make import make_private
from adamas.run.schedules import SCHEDULES
from adamas.run.statement import SEED_WARNING

__all__ = [
    "CHECKPOINT",
    "DIAGNOSTICS",
    "LEDGER",
    "MODEL",
    "PUBLISHED_WEIGHTS",
    "RESULT",
    "SCHEDULES",
    "SETTINGS",
    "PrivateRun",
    "Settings",
    "accuracy",
    "cross_entropy",
    "initial_model",
    "private_run",
    "task",
    "train_and_save",
]

_READS_TRAINING_NODES = (
    " The test accuracy is not covered: with neighbors='all' predictions read training nodes without noise."
)
_LINES = 50  # enough for a curve


def train_and_save(
    settings: Settings,
    out: Path,
    *,
    diagnose: bool = False,
    diagnose_every: int | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    elsewhere: bool = True,
    unusable: Callable[[Unusable], None] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Trains as the settings say, writes the files into `out`, and returns the result.

    Files: `model.safetensors`, `ledger.json`, with `diagnose` `diagnostics.jsonl`, and as the last one
    `result.json`; with `checkpoint_every`, until then, `checkpoint.safetensors`, its journal and
    `settings.json`. The folder is tried before the first step. Only test data is evaluated.

    Args:
        settings: What to train.
        out: The folder. Other processes are kept out of it.
        diagnose: Write lines of `run.diagnostics()` to `diagnostics.jsonl`, the last one with histograms. For
            settings with `raw`, they include the comparison that is not private.
        diagnose_every: Steps between lines; None makes 50 lines at most.
        checkpoint_every: Steps between checkpoints; None for none.
        resume: Continue the run that `out` holds, if it holds one. If that run has finished, return its
            result.
        elsewhere: Whether files that `out` cannot take at the end are kept in a new folder under the
            system's temporary directory.
        unusable: Gets, before the first step, the number of training examples without a finite gradient,
            which is not private; None does not count them.
        options: Other options of `make_private` that do not change the result, such as `progress` and
            `data_ledger`.

    Raises:
        ValueError: If `out` holds a result already, or an unfinished run that is not to be continued or had
            other settings; nothing is overwritten.
        RuntimeError: If another process writes to `out`, if it cannot be written, or if something failed
            after the last step: the message says where the files are.
    """
    if resume and checkpoint_every is None:
        raise ValueError("Expected --checkpoint-every with --resume.")
    if settings.raw and not diagnose:
        raise ValueError(
            "Expected --diagnose with --raw, which adds to what --diagnose writes and does nothing else."
        )
    names = [MODEL, LEDGER, RESULT]
    if diagnose:
        names.append(DIAGNOSTICS)
    if diagnose_every is not None:
        _validate.count(diagnose_every=diagnose_every)
    if checkpoint_every is not None:
        _validate.count(checkpoint_every=checkpoint_every)
        names += [SETTINGS, CHECKPOINT, JOURNAL]
    with own_folder(out, names):
        if resume and (out / RESULT).exists():
            return _finished_before(settings, out)
        _check_folder(settings, out, resume)
        whole, model, data = task(settings)
        if is_table(settings.data):
            check_has_rows(data)
        if checkpoint_every is not None:
            options |= {"checkpoint": out / CHECKPOINT, "checkpoint_every": checkpoint_every}
        run = private_run(settings, model, data, resume=resume, **options)
        if unusable is not None:
            unusable(count_unusable(run))
        if checkpoint_every is not None:
            replace_text(out / SETTINGS, json.dumps(asdict(settings), indent=2) + "\n")
        start = time.perf_counter()
        lines = _Lines(out / DIAGNOSTICS, run.steps_done) if diagnose else None
        problem = _train(run, lines, diagnose_every or math.ceil(run.steps / _LINES), settings.raw)
        seconds = time.perf_counter() - start
        if run.ema_model is not None:  # the averaged weights are the result: they are evaluated and saved
            run.model.load_state_dict(run.ema_model.module.state_dict())
        # Copies, since weights that are tied share their memory, which the file's format does not allow.
        weights = {name: value.clone().contiguous() for name, value in whole.state_dict().items()}
        files: dict[str, Write] = {
            MODEL: lambda path: write_tensors(path, weights),
            LEDGER: json_writer(run.ledger.state_dict()),
        }
        if lines is not None and not lines.written:
            files[DIAGNOSTICS] = text_writer("".join(lines.all))
        result: dict[str, Any] = {}
        try:
            result = _result(run, settings, data) | {"seconds": round(seconds, 2)}
            files[RESULT] = json_writer(result)
        except Exception as error:
            problem = problem or error
        write_results(files, out, remedy=_remedy(settings, out), elsewhere=elsewhere)
        if RESULT in files:
            _remove_checkpoint(out)
        if problem is not None:
            raise RuntimeError(
                f"The training is finished, but not all that follows it: {str(problem).rstrip('.')}. Its "
                f"files, {', '.join(files)}, are in {out}."
            ) from problem
        return result


def _check_folder(settings: Settings, out: Path, resume: bool) -> None:
    """Refuses a folder that holds something which this run would overwrite or continue wrongly."""
    begun, saved = (out / SETTINGS).exists(), (out / CHECKPOINT).exists()
    for name in (RESULT, CHECKPOINT, DIAGNOSTICS, MODEL, LEDGER):
        # A run that is killed before its first checkpoint has diagnostics, at most.
        goes_on = resume and begun and (saved or name == DIAGNOSTICS)
        if (out / name).exists() and not goes_on:
            raise ValueError(
                f"Expected --out without an earlier result, but {out} has {name}. Choose another folder"
                + (", or continue it with --resume." if begun and name != RESULT else ".")
            )
    if resume and begun:
        _check_same(settings, json.loads((out / SETTINGS).read_text(encoding="utf-8")), out)


def _check_same(settings: Settings, before: dict[str, Any], out: Path) -> None:
    for name, value in json.loads(json.dumps(asdict(settings))).items():
        if before.get(name) != value:
            raise ValueError(
                f"Expected --resume with the settings of the run in {out}: {name} was "
                f"{before.get(name)!r}, and is {value!r} now."
            )


def _finished_before(settings: Settings, out: Path) -> dict[str, Any]:
    """Returns the result of a run that finished, and removes a checkpoint that it may have left."""
    result: dict[str, Any] = json.loads((out / RESULT).read_text(encoding="utf-8"))
    _check_same(settings, result["settings"], out)
    _remove_checkpoint(out)
    return result


def _remove_checkpoint(out: Path) -> None:
    """Removes the files that a finished run does not need; one that stays does no harm."""
    with suppress(OSError):
        Checkpoints(out / CHECKPOINT).remove()
        (out / SETTINGS).unlink(missing_ok=True)


def _remedy(settings: Settings, out: Path) -> str:
    """Says how to recover the files of a finished run if no folder could take them."""
    if (out / CHECKPOINT).exists():
        return f"Make room, and repeat the command with --resume: it goes on from the checkpoint in {out}."
    if settings.seed is not None:
        return "Make room, and repeat the command: with the same seed the model will be the same."
    return "The model is lost. With --checkpoint-every it would not be: --resume could write it later."


class _Lines:
    """The file of diagnostics.

    Each line is one write, so that a run that dies leaves whole lines. A write that fails does not stop the
    run: the lines are then written at its end.

    Attributes:
        all: The lines.
        written: Whether they are in the file.
    """

    def __init__(self, path: Path, steps_done: int) -> None:
        self.path = path
        self.all: list[str] = []
        if path.exists():  # of a run that goes on: steps that are made again have their lines again
            found = path.read_text(encoding="utf-8").splitlines(keepends=True)
            whole = [line for line in found if line.endswith("\n")]
            self.all = [line for line in whole if json.loads(line)["step"] <= steps_done]
        replace_text(path, "".join(self.all))
        self.written = True

    def add(self, content: dict[str, Any]) -> None:
        """Adds a line."""
        self.all.append(json.dumps(content, allow_nan=False) + "\n")
        if self.written:
            data = self.all[-1].encode()
            try:
                with self.path.open("ab", buffering=0) as file:
                    self.written = file.write(data) == len(data)
            except OSError:
                self.written = False


def _train(run: PrivateRun, lines: _Lines | None, every: int, raw: bool) -> Exception | None:
    """Makes the remaining steps, and closes the account of the run.

    Returns:
        An error after the last step, when there is a model to keep; None for none.
    """
    done = run.steps_done
    problem = None
    try:
        for step in run:
            done = step.number
            if lines is not None and (done == step.total or done % every == 0):
                lines.add(run.diagnostics(raw=raw, histograms=done == step.total))
    except Exception as error:
        if done < run.steps:
            raise
        problem = error
    try:
        run.close()  # also what a process reserved that died after the last step
    except Exception as error:
        problem = problem or error
    return problem


def _result(run: PrivateRun, settings: Settings, data: Data) -> dict[str, Any]:
    epsilon, neighbors = run.epsilon(), settings.data_options.get("neighbors")
    result: dict[str, Any] = {
        "epsilon": epsilon if math.isfinite(epsilon) else "inf",
        "private": run.private,
        "delta": settings.delta,
        "noise_multiplier": run.noise_multiplier,
        "noise": run.noise.name,
        "sampling_rate": run.loader.sampler.rate,
        "steps": run.steps_done,
        "test_accuracy": None if data.target_bounds is not None else accuracy(run.model, data.test),
        "engine": run.engine,
        "privacy": run.privacy_statement() + _READS_TRAINING_NODES * (neighbors == "all"),
        "settings": asdict(settings),
        "version": __version__,
    }
    if is_table(settings.data):
        result["test_scores"] = table_scores(run.model, data)
        result["test_rows"], result["test_rows_left_out"] = len(data.test), data.left_out
    if settings.seed is not None:
        result["note"] = SEED_WARNING
    return result


def private_run(settings: Settings, model: nn.Module, data: Data, **options: Any) -> PrivateRun:
    """Makes the run that the settings describe, of a model on the training examples of a data set.

    Args:
        settings: What to train.
        model: The part that trains.
        data: Its data.
        options: Other options of `make_private`, which do not change the result.
    """
    rule = RULES[settings.rule](model.parameters(), **settings.rule_options)
    loss = cross_entropy if data.target_bounds is None else squared_error
    return make_private(model, rule, data.train, loss, **settings.run_options(), **options)
