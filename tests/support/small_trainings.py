"""Train a small model by `adamas train` or from settings, also in a process that may die."""

import contextlib
import json
import multiprocessing
import os
import signal
from pathlib import Path

import torch

from adamas import DataLedger
from adamas.cli import main
from adamas.experiment import training as experiment

STEPS = 9
TRAIN = [
    "train", "--model", "linear", "--rule", "adam", "--batch-size", "100", "--noise-multiplier", "1",
    "--steps", str(STEPS), "--accountant", "rdp", "--seed", "5",
]  # fmt: skip
SAVED = ["--checkpoint-every", "4", "--resume"]
DIAGNOSED = ["--diagnose-every", "2"]
RESULTS = ["ledger.json", "model.safetensors", "result.json"]
FORK = multiprocessing.get_context("fork")


CHECKPOINT = experiment.CHECKPOINT


def in_child(arguments, prepare=lambda: None, words=None):
    """Runs a command in another process, with its errors in the file `words`, and returns the exit code.

    The code is negative if a signal ended the process.
    """

    def run():
        with Path(words or os.devnull).open("w") as file, contextlib.redirect_stderr(file):
            torch.set_num_threads(1)  # the last bits of sums depend on it
            prepare()
            main(list(map(str, arguments)))

    process = FORK.Process(target=run)
    process.start()
    process.join(120)
    assert process.exitcode is not None
    return process.exitcode


def named(folder):
    """Returns the sorted names of the files in a folder."""
    return sorted(path.name for path in folder.iterdir())


def result_of(folder):
    """Returns the result of a training, without the seconds that it took."""
    return json.loads((folder / "result.json").read_text()) | {"seconds": 0}


def make_ledger(path):
    """Makes a data set's ledger with a budget that a few trainings do not exhaust."""
    return DataLedger.create(path, epsilon=9.0, delta=1e-5, accountant="rdp")


def die():
    """Ends this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def quick(**changes):
    """Makes the settings that `TRAIN` gives on the command line; `changes` replace some of them."""
    options = {"data": "digits", "model": "linear", "rule": "adam", "batch_size": 100, "delta": 1e-5}
    options |= {"noise_multiplier": 1.0, "steps": STEPS, "accountant": "rdp", "seed": 5}
    return experiment.Settings(**options | changes)
