#!/usr/bin/env python3
"""Measures the cost of secure noise: a draw against the default, and a whole private step with each.

    python benchmarks/secure_noise.py --json benchmarks/results/secure-noise.json

The noises take turns, one draw or one step each, so that drift of the machine affects all alike. A ratio is the median over
rounds of a time divided by that of the default noise in the same round. Brackets have the ratio of processor times, which
a busy machine changes less. `secure` draws from AES-256 in counter mode; `secure, SHAKE-256` is the
fallback without the package cryptography.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from private_step import private_step
from torch import nn

from adamas import _streams
from adamas.noise import GaussianNoise
from adamas.rules import RULES
from adamas.secure_noise import SecureNoise

BASE = "default"
NOISES = [BASE, "secure", "secure, SHAKE-256"]
MODELS = {
    "small MLP, 25,194 parameters, batch 64": (64, (64, 256, 32, 10)),
    "MLP, 1,020,573 parameters, batch 256": (256, (784, 1000, 233, 10)),
}
CIPHERS = _streams.ciphers


class Draw:
    """A draw of noise into a buffer."""

    def __init__(self, kind, size):
        self.kind, self.sums = kind, torch.zeros(size)
        self.noise = GaussianNoise(0) if kind == BASE else SecureNoise()

    def turn(self):
        if self.kind == BASE:
            self.noise.add_normal_(self.sums, 1.0)
        else:
            self.noise.round_(self.sums, 1.0)


class Step:
    """A private step of Adam, from the batch to the weights."""

    def __init__(self, kind, batch, widths):
        torch.manual_seed(0)
        layers = [
            layer for a, b in zip(widths, widths[1:], strict=False) for layer in (nn.Linear(a, b), nn.ReLU())
        ]
        self.model = nn.Sequential(*layers[:-1])
        self.batch = (torch.randn(batch, widths[0]), torch.randint(0, widths[-1], (batch,)))
        self.rule = RULES["adam-bc"](self.model.parameters())
        self.noise = GaussianNoise(0) if kind == BASE else SecureNoise()

    def turn(self):
        private_step(self.model, self.rule, self.batch, self.noise)


def race(contestants, rounds, warmup):
    """Returns wall and processor seconds of each turn, by name."""
    seconds = {name: [] for name in contestants}
    for turn in range(warmup + rounds):
        for name, contestant in contestants.items():
            _streams.ciphers = None if "SHAKE" in name else CIPHERS
            start = time.perf_counter(), time.process_time()
            contestant.turn()
            if turn >= warmup:
                seconds[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    _streams.ciphers = CIPHERS
    return seconds


def summary(seconds, values):
    def ratio(name, clock):
        pairs = zip(seconds[name], seconds[BASE], strict=True)
        return round(statistics.median(mine[clock] / other[clock] for mine, other in pairs), 2)

    return {
        name: {
            "ratio": ratio(name, 0),
            "processor_ratio": ratio(name, 1),
            "processor_milliseconds": round(statistics.median(t for _, t in each) * 1e3, 3),
            "processor_nanoseconds_per_value": round(statistics.median(t for _, t in each) / values * 1e9, 2),
        }
        for name, each in seconds.items()
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=1 << 20, help="values of a draw")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if CIPHERS is None:
        raise SystemExit("pip install adamas[secure]")
    torch.set_num_threads(given.threads)
    draws = race({kind: Draw(kind, given.size) for kind in NOISES}, given.rounds, given.warmup)
    results = {f"a draw of {given.size:,} values": summary(draws, given.size)}
    for name, (batch, widths) in MODELS.items():
        contestants = {kind: Step(kind, batch, widths) for kind in NOISES}
        count = sum(p.numel() for p in contestants[BASE].model.parameters())
        assert f"{count:,}" in name, count
        results[f"a step: {name}"] = summary(race(contestants, given.rounds, given.warmup), count)
    print("| | " + " | ".join(NOISES) + " |")
    print("|---" * (len(NOISES) + 1) + "|")
    for name, found in results.items():
        cells = [f"{found[k]['ratio']:.2f} ({found[k]['processor_ratio']:.2f})" for k in NOISES]
        print(f"| {name} | " + " | ".join(cells) + " |")
    for kind, found in next(iter(results.values())).items():
        print(f"{kind}: {found['processor_nanoseconds_per_value']:.1f} ns a value")
    if given.json:
        context = {"torch": torch.__version__, "machine": platform.machine(), "threads": given.threads}
        given.json.write_text(json.dumps({"context": context, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
