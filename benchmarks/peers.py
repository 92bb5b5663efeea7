#!/usr/bin/env python3
"""Compares differentially private training steps of several libraries on the CPU.

    python benchmarks/peers.py --workloads W1,W4 --methods plain,opacus_hooks --reps 5 --json out.json
    python benchmarks/peers.py --check         # gradients without noise, against the vmap baseline
    python benchmarks/peers.py --micro         # forms of Adam and Gaussian draws, on 1 and 2 threads
    python benchmarks/peers.py --profile --workloads W1,W4 --methods opacus_hooks    # where the time goes
    python benchmarks/peers.py --list

`peer_steps/` has the workloads, the methods and what is done with them.
"""

import argparse
import importlib
import json
import os
import sys
import time

from peer_steps.catalog import METHODS, WORKLOADS

# Each has a function of the same name in a module of `peer_steps`, which is imported only if asked for: the parent of a
# measurement must not import torch.
INSTEAD_OF_BENCH = ("check", "micro", "profile")


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="comma-separated, all by default")
    parser.add_argument("--methods", default=",".join(METHODS), help="comma-separated, all by default")
    parser.add_argument("--reps", type=int, default=5, help="rounds over all methods")
    parser.add_argument("--slice", type=float, default=0.5, help="seconds that a method gets per round")
    parser.add_argument("--max-steps", type=int, default=20, help="most steps of a method per round")
    parser.add_argument("--warmup", type=int, default=3, help="steps before the first that counts")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--clip", type=float, default=1.0, help="clipping norm")
    parser.add_argument("--sigma", type=float, default=1.0, help="noise multiplier")
    parser.add_argument("--batch", type=int, help="batch size instead of that of each workload")
    parser.add_argument("--seq", type=int, help="tokens of the text workloads")
    parser.add_argument("--seed", type=int, default=0, help="of --check")
    parser.add_argument("--top", type=int, default=10, help="operators that --profile prints")
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("--verbose", action="store_true", help="show what the workers print")
    for flag in (*INSTEAD_OF_BENCH, "list"):
        parser.add_argument("--" + flag, action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--workload", help=argparse.SUPPRESS)
    parser.add_argument("--method", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.workloads, args.methods = args.workloads.split(","), args.methods.split(",")
    for given, known in ((args.workloads, WORKLOADS), (args.methods, METHODS)):
        unknown = [name for name in given if name not in known]
        if unknown:
            parser.error(f"unknown {unknown}; known: {list(known)}")
    return args


def print_names():
    for name, workload in WORKLOADS.items():
        print(f"{name:18s} B={workload.batch}  {workload.note}")
    for name, method in METHODS.items():
        print(f"{name:18s} {method.note}")


def main():
    args = parse()
    if args.worker:
        from peer_steps.worker import work

        work(args)
        return
    if args.list:
        print_names()
        return
    kind = next((name for name in INSTEAD_OF_BENCH if getattr(args, name)), "bench")
    module = "rounds" if kind == "bench" else kind
    function = getattr(importlib.import_module(f"peer_steps.{module}"), kind)
    start, load = time.time(), os.getloadavg()
    result = {"kind": kind, "argv": sys.argv[1:], "threads": args.threads, "loadavg_start": load}
    result["results"] = function(args)
    result.update(loadavg_end=os.getloadavg(), seconds=time.time() - start)
    loads = f"{load[0]:.1f} -> {result['loadavg_end'][0]:.1f}"
    print(f"\n{kind}: {result['seconds']:.0f} s, load {loads}", file=sys.stderr)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
