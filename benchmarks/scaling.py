#!/usr/bin/env python3
"""Measures time and memory of a step against batch size and sequence length.

    python benchmarks/scaling.py --json benchmarks/results/scaling.json

Each point is an interleaved run of `peers.py` over the methods, in fresh processes, on one thread.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

METHODS = ["plain", "adamas", "adamas_coord"]
# workload, the option that varies, its values
AXES = [
    ("W1", "batch", [64, 128, 256, 512, 1024]),
    ("W2", "batch", [32, 64, 128, 256]),
    ("W4", "batch", [2, 4, 8, 16]),
    ("W4", "seq", [32, 64, 128, 256]),
]


def measure(workload: str, axis: str, value: int, arguments: list[str]) -> dict:
    """Returns the median step time and peak memory growth of each method."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        varied = [f"--{axis}", str(value)] + (["--batch", "8"] if axis == "seq" else [])
        command = [sys.executable, str(Path(__file__).with_name("peers.py")), "--workloads", workload]
        command += ["--methods", ",".join(METHODS), "--json", str(out), *varied, *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = json.loads(out.read_text())["results"][workload]
    return {
        method: {"seconds": rows[method]["median"], "bytes": rows[method]["peak_growth"]}
        for method in METHODS
    }


def main() -> None:
    """Measures all points and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--slice", type=float, default=0.5, help="seconds that a method gets per round")
    args = parser.parse_args()
    arguments = ["--threads", "1", "--warmup", "2", "--reps", str(args.reps), "--slice", str(args.slice)]
    series = []
    for workload, axis, values in AXES:
        points = [{"value": value, **measure(workload, axis, value, arguments)} for value in values]
        series.append({"workload": workload, "axis": axis, "points": points})
        print(workload, axis, "measured", flush=True)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"series": series}, indent=1) + "\n")


if __name__ == "__main__":
    main()
