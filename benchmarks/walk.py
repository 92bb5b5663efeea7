"""Counts how often a reader changes files when following one private step, with checkpoint and budget on.

    python benchmarks/walk.py            # prints the counts
    python benchmarks/walk.py --list     # also each file, in the order in which the step first enters it

A change of file is a call from a function in one file of adamas to a function in another. A pair of functions counts
once, however often the step repeats the call: a reader follows it once. Code outside adamas (torch, NumPy, the standard
library) is skipped, so that a callback from torch counts as a call from the function of adamas that called torch.
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import adamas

PACKAGE = str(Path(adamas.__file__).parent) + "/"


class Walk:
    """Records calls between files of adamas, as a profile function of `sys.setprofile`."""

    def __init__(self):
        self.calls = Counter()  # (calling function, called function) -> times

    def __call__(self, frame, event, argument):
        if event != "call" or not inside(frame):
            return
        caller = frame.f_back
        while caller is not None and not inside(caller):
            caller = caller.f_back
        if caller is None or caller.f_code.co_filename != frame.f_code.co_filename:
            self.calls[caller and caller.f_code, frame.f_code] += 1


def inside(frame):
    return frame.f_code.co_filename.startswith(PACKAGE)


def file_of(code):
    return "" if code is None else code.co_filename.removeprefix(PACKAGE)


def loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def walk_of_one_step(warmup=3):
    """Returns the calls between files in one step, after warm-up steps that fill caches."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(1000, 20), torch.randint(0, 10, (1000,)))
    model = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 10))
    rule = adamas.rules.AdamBC(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        run = adamas.make_private(
            *(model, rule, data, loss),
            **{"batch_size": 50, "steps": 100, "epsilon": 3.0, "delta": 1e-5},
            **{"checkpoint": Path(folder) / "run.safetensors", "checkpoint_every": 50, "progress": False},
        )
        run.save(Path(folder) / "run.safetensors")  # from here on, releases are written to the journal
        steps = iter(run)
        for _ in range(warmup):
            next(steps)
        walk = Walk()
        sys.setprofile(walk)
        try:
            next(steps)
        finally:
            sys.setprofile(None)
        steps.close()
        run.close()
    return walk.calls


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--list", action="store_true", help="list the files, with the number of changes that lead into each"
    )
    arguments = parser.parse_args()
    calls = walk_of_one_step()
    if arguments.list:
        entries = Counter(file_of(called) for _, called in calls)
        for file, times in entries.items():
            print(f"{times:5}  {file}")
    summary("the whole step", calls)
    summary("outside engines/", [pair for pair in calls if not any(is_engine(code) for code in pair)])


def is_engine(code):
    return file_of(code).startswith("engines/")


def summary(title, pairs):
    files = {file_of(called) for _, called in pairs}
    print(f"{title}: {len(pairs)} changes of file over {len(files)} files")


if __name__ == "__main__":
    main()
