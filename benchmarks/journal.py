#!/usr/bin/env python3
"""Measures the cost of a journal entry: the synced write alone, and a whole step with and without it.

    python benchmarks/journal.py --json benchmarks/results/journal.json

Three runs in one process take turns, one step each: without a journal, with a journal, and with a journal and a seed,
whose entries hold a digest of the sum. A ratio is the median over turns.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import adamas
from adamas import rules
from adamas.accounting.journal import Journal, Release


def entry(folder: Path, count: int) -> float:
    """Returns the median seconds of writing and syncing one entry."""
    journal = Journal(folder / "alone")
    journal.restart()
    taken = []
    for step in range(count):
        start = time.perf_counter()
        journal.append([Release(step, 1.0, bytes(range(16)))])
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def make_run(hidden: int, seed: int | None, checkpoint: Path | None) -> adamas.PrivateRun:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    data = TensorDataset(torch.randn(1024, 784), torch.randint(10, (1024,)))
    run = adamas.make_private(
        model,
        rules.Adam(model.parameters()),
        data,
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
        batch_size=256,
        steps=100_000,
        noise_multiplier=1.0,
        delta=1e-5,
        accountant="rdp",
        seed=seed,
        progress=False,
    )
    if checkpoint is not None:
        run.save(checkpoint)
    return run


def main() -> None:
    """Prints the numbers and writes them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results: dict[str, object] = {"threads": args.threads, "turns": args.turns}
    with tempfile.TemporaryDirectory(dir=".") as name:  # on the disk of this folder
        folder = Path(name)
        results["entry_us"] = round(1e6 * entry(folder, 500), 1)
        for hidden in (64, 1000):
            kinds = {
                "none": make_run(hidden, None, None),
                "without a seed": make_run(hidden, None, folder / f"{hidden}-a"),
                "with a seed": make_run(hidden, 1, folder / f"{hidden}-b"),
            }
            steps = {kind: iter(run) for kind, run in kinds.items()}
            taken: dict[str, list[float]] = {kind: [] for kind in kinds}
            for turn in range(args.turns + 5):
                order = list(kinds)[turn % 3 :] + list(kinds)[: turn % 3]
                for kind in order:
                    start = time.perf_counter()
                    next(steps[kind])
                    if turn >= 5:
                        taken[kind].append(time.perf_counter() - start)
            results[f"784-{hidden}-10"] = {
                "step_ms": round(1e3 * statistics.median(taken["none"]), 3),
                **{
                    kind: round(
                        statistics.median(b / a for a, b in zip(taken["none"], taken[kind], strict=True)), 4
                    )
                    for kind in ("without a seed", "with a seed")
                },
            }
    print(json.dumps(results, indent=1))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
