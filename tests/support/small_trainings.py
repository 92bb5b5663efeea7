"""Train a small model by `adamas train` or by its settings, also in a process that may die."""

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


def in_child(arguments, prepare=lambda: None, words=None):
    """The exit code of a command in a process of its own; negative if a signal ended it."""

    def run():
        with Path(words or os.devnull).open("w") as file, contextlib.redirect_stderr(file):
            torch.set_num_threads(1)  # as in other tests: the last bits depend on it
            prepare()
            main(list(map(str, arguments)))

    process = FORK.Process(target=run)
    process.start()
    process.join(120)
    assert process.exitcode is not None
    return process.exitcode


def named(folder):
    return sorted(path.name for path in folder.iterdir())


def result_of(folder):
    return json.loads((folder / "result.json").read_text()) | {"seconds": 0}


def make_ledger(path):
    return DataLedger.create(path, epsilon=9.0, delta=1e-5, accountant="rdp")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


CHECKPOINT = experiment.CHECKPOINT


def quick(**changes):
    options = {"data": "digits", "model": "linear", "rule": "adam", "batch_size": 100, "delta": 1e-5}
    options |= {"noise_multiplier": 1.0, "steps": STEPS, "accountant": "rdp", "seed": 5}
    return experiment.Settings(**options | changes)
