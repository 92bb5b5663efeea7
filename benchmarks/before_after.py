#!/usr/bin/env python3
"""Compares the whole step of a private run in this tree and in another checkout.

    python benchmarks/before_after.py OTHER

Two processes train the same model on the same batches from the same seed, and take turns, so that drift of the machine
affects both alike. A turn is a few steps. Its first step is not counted: the caches hold the other process's data, and the
threads are asleep. Waiting threads must not spin, since the other process needs the cores.

Prints three ratios: of the medians over all steps, the median over paired turns, and of the fastest steps. Quote the first
one. If the others differ much from it, the machine was not quiet.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]


def worker(workload: str, threads: int, coordinates: bool) -> None:
    """Reads numbers of steps from standard input, makes as many steps, and prints the seconds of each."""
    sys.path.insert(0, str(HERE / "benchmarks"))
    import torch
    from peer_steps.catalog import WORKLOADS
    from peer_steps.geometry import random_geometry
    from torch.nn import functional as F

    import adamas
    from adamas import rules

    torch.set_num_threads(threads)
    model, x, y = WORKLOADS[workload].build()
    params = [p for p in model.parameters() if p.requires_grad]
    rule = rules.Adam(params, lr=1e-4)
    if coordinates:
        fixed = random_geometry(params)  # the same in both trees
        rule.geometry = lambda: fixed
    run = adamas.make_private(
        model,
        rule,
        torch.utils.data.TensorDataset(x, y),
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
        batch_size=len(x),
        steps=100_000,
        noise_multiplier=1.0,
        delta=1e-9,
        accountant="rdp",
        seed=0,
        progress=False,
    )
    print(json.dumps(run.engine), flush=True)
    steps = iter(run)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            start = time.perf_counter()
            next(steps)
            seconds.append(time.perf_counter() - start)
        print(json.dumps(seconds), flush=True)


class Side:
    """A process that runs one of the two trees."""

    def __init__(self, tree: Path, workload: str, threads: int, coordinates: bool) -> None:
        command = [sys.executable, __file__, str(tree), "--worker", workload, "--threads", str(threads)]
        command += ["--coordinates"] if coordinates else []
        environment = os.environ | {
            "PYTHONPATH": str(tree),
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "passive",
        }
        self.process = subprocess.Popen(
            command, env=environment, cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.engine = self.read()

    def read(self) -> object:
        """Reads an answer."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def steps(self, count: int) -> list[float]:
        """Makes some steps and returns their seconds."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return list(self.read())  # type: ignore[call-overload, no-any-return]

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compared(
    other: Path, workload: str, threads: int, seconds: float, *, coordinates: bool
) -> dict[str, float]:
    """Times the steps of both trees in turns."""
    sides = [Side(tree, workload, threads, coordinates) for tree in (other, HERE)]
    slowest = max(statistics.median(side.steps(5)) for side in sides)
    count = 1 + max(2, min(20, int(0.5 / slowest)))  # half a second, or two steps, after the first one
    turns: list[list[list[float]]] = [[], []]
    end, turn = time.monotonic() + seconds, 0
    while time.monotonic() < end or len(turns[0]) < 5:
        for i in (turn % 2, 1 - turn % 2):
            turns[i].append(sides[i].steps(count)[1:])
        turn += 1
    for side in sides:
        side.close()
    before, after = ([each for turn in side for each in turn] for side in turns)
    paired = [statistics.median(b) / statistics.median(a) for a, b in zip(*turns, strict=True)]
    return {
        "steps": len(before),
        "before_ms": 1e3 * statistics.median(before),
        "after_ms": 1e3 * statistics.median(after),
        "ratio": statistics.median(after) / statistics.median(before),
        "ratio_of_turns": statistics.median(paired),
        "ratio_of_fastest": min(after) / min(before),
    }


def main() -> None:
    """Prints a line for each workload."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("other", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--workloads", default="W1,W2,W3,W3ws,W4,W5")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0, help="for each workload")
    parser.add_argument("--coordinates", action="store_true", help="a center and a scale per coordinate")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker, args.threads, args.coordinates)
        return
    results = {}
    for workload in args.workloads.split(","):
        results[workload] = compared(
            args.other.resolve(), workload, args.threads, args.seconds, coordinates=args.coordinates
        )
        print(
            workload, " ".join(f"{key}={value:.4g}" for key, value in results[workload].items()), flush=True
        )
    if args.json:
        settings = {"threads": args.threads, "coordinates": args.coordinates}
        args.json.write_text(json.dumps(settings | {"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
