#!/usr/bin/env python3
"""Measures the time of a step and the size of the state of every rule, against `torch.optim.Adam`.

    python benchmarks/rules.py --threads 1 --json benchmarks/results/rules-1-thread.json
    python benchmarks/rules.py --rules adam,micro-adam --layouts one,forty --reps 30
    NUMBA_DISABLE_JIT=1 python benchmarks/rules.py --rules micro-adam    # without its compiled step

All optimizers of a layout take turns, one step each, so that drift of the machine affects all alike. A ratio is the
median over rounds of a step's time divided by that of `torch.optim.Adam` in the same round. Only `step()` is timed,
with torch's wrapper around it. The release is written beforehand. Parameters and gradients are random, in float32. A
rule whose clipping has a scale per coordinate gets a noise variance per coordinate.
"""

import argparse
import importlib.metadata
import json
import math
import os
import platform
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from adamas import PrivateGradient
from adamas.rules import RULES

MILLIONS = 10_000_000
NOISE_STD = 1e-3
BASE = "torch Adam"

# Arguments that these rules need.
ARGUMENTS: dict[str, dict] = {"sgd": {"lr": 1e-3}}


def mini_lm() -> list[tuple[int, ...]]:
    """Returns the parameter shapes of a six-layer MiniLM: 22.7 million in 101 tensors."""
    d, inner = 384, 1536
    norm = [(d,), (d,)]
    layer = [(d, d), (d,)] * 4 + norm + [(inner, d), (inner,), (d, inner), (d,)] + norm
    return [(30522, d), (512, d), (2, d), *norm, *layer * 6, (d, d), (d,)]


LAYOUTS = {
    "one": ("10M parameters in one tensor", [(MILLIONS,)]),
    "forty": ("10M parameters in 40 tensors", [(MILLIONS // 40,)] * 40),
    "minilm": ("MiniLM, 22.7M parameters in 101 tensors", mini_lm()),
}


class Contestant:
    """An optimizer with its own parameters."""

    def __init__(self, name: str, shapes: list[tuple[int, ...]]) -> None:
        self.name = name
        self.params = [nn.Parameter(torch.randn(shape)) for shape in shapes]
        if name.startswith("torch"):
            fused = True if "fused" in name else None
            self.optimizer = torch.optim.Adam(self.params, fused=fused)
        else:
            self.optimizer = RULES[name](self.params, **ARGUMENTS.get(name, {}))

    def write(self, gradients: list[Tensor], variances: list[Tensor]) -> None:
        if self.name.startswith("torch"):
            for p, g in zip(self.params, gradients):
                p.grad = g
            return
        scale = self.optimizer.geometry().scale
        by_coordinate = any(isinstance(value, Tensor) and value.dim() for value in scale.values())
        noise = variances if by_coordinate else [NOISE_STD**2] * len(variances)
        release = PrivateGradient(dict(zip(self.params, gradients)), dict(zip(self.params, noise)))
        release.write_to(self.optimizer)

    def timed_step(self) -> float:
        start = time.perf_counter()
        self.optimizer.step()
        return time.perf_counter() - start

    def state_bytes(self) -> int:
        return sum(
            value.numel() * value.element_size()
            for state in self.optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        )


def measure(layout: str, names: list[str], reps: int, warmup: int) -> dict:
    """Returns a row for each optimizer."""
    note, shapes = LAYOUTS[layout]
    total = sum(math.prod(shape) for shape in shapes)
    contestants, rows = [], {}
    for name in names:
        try:
            contestants.append(Contestant(name, shapes))
        except TypeError as error:  # the rule needs an argument that is computed from data
            rows[name] = {"skipped": str(error)}
    # Two gradients, so that the coordinates that a rule selects change from step to step.
    gradients = [[NOISE_STD * torch.randn(shape) for shape in shapes] for _ in range(2)]
    variances = [NOISE_STD**2 * (0.5 + torch.rand(shape)) for shape in shapes]
    times: dict[str, list[float]] = {c.name: [] for c in contestants}
    for index in range(warmup + reps):
        for c in contestants:
            c.write(gradients[index % 2], variances)
            seconds = c.timed_step()
            if index >= warmup:
                times[c.name].append(seconds)
    for c in contestants:
        mine, base = times[c.name], times[BASE]
        rows[c.name] = {
            "median": statistics.median(mine),
            "min": min(mine),
            "ratio": statistics.median(a / b for a, b in zip(mine, base)),
            "ratio_min": min(mine) / min(base),
            "state_bytes": c.state_bytes(),
            "bytes_per_parameter": c.state_bytes() / total,
        }
    return {"note": note, "parameters": total, "tensors": len(shapes), "rows": rows}


def table(result: dict) -> str:
    """Returns a Markdown table of one layout."""
    lines = [
        f"### {result['note']}",
        "| optimizer | median ms | min ms | ratio (paired median) | ratio of mins | state, bytes per parameter | state MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in result["rows"].items():
        if "skipped" in row:
            lines.append(f"| {name} | – | – | – | – | – | {row['skipped']} |")
            continue
        lines.append(
            f"| {name} | {row['median'] * 1e3:.1f} | {row['min'] * 1e3:.1f} | {row['ratio']:.2f} "
            f"| {row['ratio_min']:.2f} | {row['bytes_per_parameter']:.2f} | {row['state_bytes'] / 2**20:.1f} |"
        )
    return "\n".join(lines)


def numba_version() -> str | None:
    """Returns the version of Numba; None if it is missing or switched off."""
    try:
        version = importlib.metadata.version("numba")
    except importlib.metadata.PackageNotFoundError:
        return None
    return None if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0" else version


def main() -> None:
    """Measures the layouts, prints the results and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--reps", type=int, default=20)
    parser.add_argument(
        "--warmup", type=int, default=12, help="steps before the first that counts; MicroAdam's window has 10"
    )
    parser.add_argument("--rules", default=",".join(RULES), help="comma-separated names, all by default")
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    rules = [name for name in args.rules.split(",") if name in RULES]
    names = [BASE, "torch Adam, fused", *rules]
    results = {}
    print(f"torch {torch.__version__}, numba {numba_version()}, threads {args.threads}")
    for layout in args.layouts.split(","):
        results[layout] = measure(layout, names, args.reps, args.warmup)
        print("\n" + table(results[layout]), flush=True)
    if args.json:
        about = {
            "threads": args.threads,
            "reps": args.reps,
            "torch": torch.__version__,
            "numba": numba_version(),
            "machine": platform.machine(),
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"about": about, "layouts": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
