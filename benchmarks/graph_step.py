"""Measures private steps on a graph of ogbn-arxiv's size, beside the same network without privacy.

    python benchmarks/graph_step.py                       # gcn, one hop, max_degree 7, one and two threads
    python benchmarks/graph_step.py --hops 2 --max-degree 3

The graph is made with a seed: 169,343 nodes, 1.17 million edges, 128 features, power-law degrees, 90,941 training nodes. Both
methods step on the same batches of about 10,000 terms, gathered anew in each step. Steps alternate in one process, so that a busy
machine slows both; the ratio is the median of the ratios of neighbouring steps. Peak memory is that of a process of its own for each
method.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F

import adamas
from adamas import rules
from adamas.data import power_law_graph
from adamas.graphs import NodeTerms
from adamas.models import MODELS

RESULTS = Path(__file__).parent / "results" / "graph-step.json"


def loss(model, batch):
    *inputs, labels = batch
    return F.cross_entropy(model(*inputs), labels, reduction="none")


class Steps:
    """The two methods on one graph."""

    def __init__(self, options):
        torch.manual_seed(0)
        data = power_law_graph(seed=0)
        started = time.perf_counter()
        self.terms = NodeTerms(data.graph, max_degree=options.max_degree, hops=options.hops)
        self.seconds_to_bound = time.perf_counter() - started
        self.models = [self._model(options, data) for _ in range(2)]
        self.batch_size = options.batch_size
        self.run = adamas.make_private(
            self.models[0],
            rules.AdamBC(self.models[0].parameters(), lr=1e-3),
            self.terms,
            loss,
            batch_size=options.batch_size,
            steps=10_000,
            noise_multiplier=self.terms.noise_multiplier(2.0),
            delta=1e-6,
            seed=0,
            progress=False,
        )
        self.plain = torch.optim.Adam(self.models[1].parameters(), lr=1e-3)
        self.steps = iter(self.run)

    @staticmethod
    def _model(options, data):
        hops = {} if options.model == "node-mlp" else {"hops": options.hops}
        return MODELS[options.model](data.input_shape, data.classes, **hops)

    def private(self):
        """Times one step of the run: draw, gather, clip, noise, update."""
        started = time.perf_counter()
        next(self.steps)
        return time.perf_counter() - started

    def non_private(self):
        """Times one step of the plain network on the next batch of the same sampler."""
        started = time.perf_counter()
        places = torch.from_numpy(self.run.loader.sampler.indices(self.run.steps_done).indices)
        batch = self.terms[places]
        self.plain.zero_grad()
        loss(self.models[1], batch).sum().div(self.batch_size).backward()
        self.plain.step()
        return time.perf_counter() - started


def measured(options):
    torch.set_num_threads(options.threads)
    steps = Steps(options)
    assert steps.run.engine == "bookkeeping", steps.run.engine
    if options.alone:
        for _ in range(5):
            getattr(steps, options.alone)()
        return {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    for _ in range(2):
        steps.private(), steps.non_private()
    pairs = [(steps.private(), steps.non_private()) for _ in range(options.steps)]
    return {
        "private_seconds": statistics.median(a for a, _ in pairs),
        "non_private_seconds": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(a / b for a, b in pairs),
        "seconds_to_bound_degrees": steps.seconds_to_bound,
        "terms": len(steps.terms),
        "engine": steps.run.engine,
    }


def peak(arguments, alone, threads):
    """Returns the peak memory of one method, in a process that does not warm the other one up."""
    command = [sys.executable, __file__, *arguments, "--alone", alone, "--threads", str(threads), "--worker"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["peak_mib"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="gcn", choices=["gcn", "graphsage", "node-mlp"])
    parser.add_argument("--hops", type=int, default=1)
    parser.add_argument("--max-degree", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--alone", choices=["private", "non_private"])
    parser.add_argument("--worker", action="store_true")
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measured(options)))
        return
    sizes = ["--model", options.model, "--hops", str(options.hops), "--max-degree", str(options.max_degree)]
    sizes += ["--batch-size", str(options.batch_size)]
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for threads in [options.threads] if options.threads else [1, 2]:
        command = [sys.executable, __file__, *sizes, "--steps", str(options.steps), "--threads", str(threads)]
        found = json.loads(
            subprocess.run([*command, "--worker"], capture_output=True, text=True, check=True).stdout
        )
        found |= {f"{name}_peak_mib": peak(sizes, name, threads) for name in ("private", "non_private")}
        name = f"{options.model}, {options.hops} hop{'s' * (options.hops > 1)}, max_degree {options.max_degree}, {threads} thread{'s' * (threads > 1)}"
        results[name] = found
        print(name, json.dumps(found, indent=1))
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
