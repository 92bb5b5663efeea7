#!/usr/bin/env python3
"""The whole step of a private run in this tree, beside that of another checkout: `before_after.py OTHER`.

Two processes train the same model on the same batches, from the same seed, and take turns step by step, so that
drift of the machine meets both alike. The ratio is the median over the steps that both made.
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


def worker(workload: str, threads: int) -> None:
    """Trains, one step for each line on the standard input, and answers with its seconds."""
    sys.path.insert(0, str(HERE / "benchmarks"))
    import peers
    import torch
    from torch.nn import functional as F

    import adamas
    from adamas import rules

    torch.set_num_threads(threads)
    model, x, y = peers.build_workload(workload)
    params = [p for p in model.parameters() if p.requires_grad]
    run = adamas.make_private(
        model,
        rules.Adam(params, lr=1e-4),
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
    for _ in sys.stdin:
        start = time.perf_counter()
        next(steps)
        print(json.dumps(time.perf_counter() - start), flush=True)


class Side:
    """A process with one of the two trees."""

    def __init__(self, tree: Path, workload: str, threads: int) -> None:
        command = [sys.executable, __file__, str(tree), "--worker", workload, "--threads", str(threads)]
        environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            command, env=environment, cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.engine = self.read()

    def read(self) -> object:
        """Reads an answer."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def step(self) -> float:
        """Makes a step, and returns its seconds."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.read())  # type: ignore[arg-type]

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compared(other: Path, workload: str, threads: int, seconds: float) -> dict[str, float]:
    """Steps of both trees, by turns."""
    sides = [Side(other, workload, threads), Side(HERE, workload, threads)]
    for _ in range(3):
        for side in sides:
            side.step()
    taken: list[list[float]] = [[], []]
    end, turn = time.monotonic() + seconds, 0
    while time.monotonic() < end or len(taken[0]) < 10:
        for i in (turn % 2, 1 - turn % 2):
            taken[i].append(sides[i].step())
        turn += 1
    for side in sides:
        side.close()
    ratios = [after / before for before, after in zip(*taken, strict=True)]
    return {
        "steps": len(ratios),
        "before_ms": 1e3 * statistics.median(taken[0]),
        "after_ms": 1e3 * statistics.median(taken[1]),
        "ratio": statistics.median(ratios),
        "ratio_of_fastest": min(taken[1]) / min(taken[0]),
    }


def main() -> None:
    """Prints a line for each workload."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("other", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--workloads", default="W1,W2,W3,W3ws,W4,W5")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0, help="for each workload")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker, args.threads)
        return
    results = {}
    for workload in args.workloads.split(","):
        results[workload] = compared(args.other.resolve(), workload, args.threads, args.seconds)
        print(
            workload, " ".join(f"{key}={value:.4g}" for key, value in results[workload].items()), flush=True
        )
    if args.json:
        args.json.write_text(json.dumps({"threads": args.threads, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
