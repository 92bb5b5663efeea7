#!/usr/bin/env python3
"""Measures a whole private step of each rule: geometry, clipping, noise, update.

    python benchmarks/private_rules.py --threads 1 --json benchmarks/results/private-rules-1-thread.json

The rules take turns, one step each, so that drift of the machine affects all alike. A ratio is the median over rounds of
a step's time divided by that of `adam` in the same round. Models and batches are those of `peers.py`.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from peer_steps.catalog import WORKLOADS
from private_step import private_step

from adamas.noise import GaussianNoise
from adamas.rules import RULES

BASE = "adam"


class Contestant:
    """A rule with its own model."""

    def __init__(self, name: str, workload: str) -> None:
        self.model, x, y = WORKLOADS[workload].build()
        self.batch = (x, y)
        self.rule = RULES[name](self.model.parameters())
        self.noise = GaussianNoise(seed=0)

    def step(self) -> None:
        private_step(self.model, self.rule, self.batch, self.noise)


def measure(workload: str, rules: list[str], rounds: int, warmup: int) -> dict[str, list[float]]:
    """Returns the seconds of each step, by rule."""
    contestants = {name: Contestant(name, workload) for name in rules}
    seconds: dict[str, list[float]] = {name: [] for name in rules}
    for turn in range(warmup + rounds):
        for name, contestant in contestants.items():
            start = time.perf_counter()
            contestant.step()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default="W1,W2")
    parser.add_argument("--rules", default="adam,adam-bc,macadam,macadam-bc,adaclip,scale-then-privatize")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rules = args.rules.split(",")
    rules = [BASE, *(name for name in rules if name != BASE)]
    results = {}
    for workload in args.workloads.split(","):
        seconds = measure(workload, rules, args.rounds, args.warmup)
        results[workload] = {
            name: {
                "ratio": statistics.median(a / b for a, b in zip(each, seconds[BASE], strict=True)),
                "ratio_of_minima": min(each) / min(seconds[BASE]),
                "milliseconds": statistics.median(each) * 1e3,
            }
            for name, each in seconds.items()
        }
    print("| rule | " + " | ".join(f"{w}: {WORKLOADS[w].note}" for w in results) + " |")
    print("|---" * (len(results) + 1) + "|")
    for name in rules:
        cells = [
            f"{r[name]['ratio']:.2f} ({r[name]['ratio_of_minima']:.2f}), {r[name]['milliseconds']:.1f} ms"
            for r in results.values()
        ]
        print(f"| `{name}` | " + " | ".join(cells) + " |")
    if args.json:
        context = {"torch": torch.__version__, "machine": platform.machine(), "threads": args.threads}
        args.json.write_text(json.dumps({"context": context, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
