#!/usr/bin/env python3
"""Measures the time of imports beyond torch's own, in fresh processes that take turns.

    python benchmarks/import_time.py --json benchmarks/results/import-time.json
    git worktree add ../before cc03309 && python benchmarks/import_time.py --before ../before

Each process imports torch and then runs one statement. A time is the median over rounds; the ratio divides it by the time
of torch in the same process. The files are in the system's cache: one round is not counted.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STATEMENTS = ["import adamas", "from adamas import rules", "from adamas import make_private, rules"]
CODE = """
from time import perf_counter
start = perf_counter()
import torch
middle = perf_counter()
{statement}
print(middle - start, perf_counter() - middle)
"""


def seconds(tree, statement):
    """Returns the seconds of torch and of the statement."""
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(statement=statement)],
        cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return tuple(map(float, done.stdout.split()))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="another tree of adamas, to compare with")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    trees = {"here": ROOT} | ({"before": given.before.resolve()} if given.before else {})
    turns = {(name, statement): [] for name in trees for statement in STATEMENTS}
    for turn in range(given.rounds + 1):
        for (name, statement), found in turns.items():
            pair = seconds(trees[name], statement)
            if turn:
                found.append(pair)
    results = {
        f"{statement} ({name})": {
            "seconds": round(statistics.median(own for _, own in found), 3),
            "ratio_to_torch": round(statistics.median(own / torch for torch, own in found), 3),
        }
        for (name, statement), found in turns.items()
    }
    for name, result in results.items():
        print(f"{name}: {result['seconds']:.2f} s, {result['ratio_to_torch']:.2f} of torch's own time")
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
