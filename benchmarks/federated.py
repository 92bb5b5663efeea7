#!/usr/bin/env python3
"""Measures the overhead of a federated round, and the size of an upload.

    python benchmarks/federated.py --json benchmarks/results/federated.json

The same training of 10 clients runs alternately in one process and in Flower's simulation, so that drift of the machine
affects both alike. Overhead is the wall time of a round divided by the sum of its clients' local training times, measured
in the process.
Flower trains one client per core at a time, so its ratio may be below 1. The first round, in which processes start, is
reported separately.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # in the processes of the simulation too

import torch

from adamas.federated import FedAdamW
from adamas.federated.flower.messages import pack
from adamas.federated.flower.simulation import simulate
from adamas.federated.settings import FederatedSettings
from adamas.federated.task import make_task
from adamas.federated.training import client_sizes, make_server, train_in_process

TRAININGS = {
    "digits, mlp": {"data": "digits", "model": "mlp"},
    "mnist, tanh-cnn": {"data": "mnist", "model": "tanh-cnn"},
    "cifar10, cnn": {"data": "cifar10", "model": "cnn"},
}


def settings(name, rounds, **options):
    return FederatedSettings(
        **TRAININGS[name],
        **{"clients": 10, "rounds": rounds, "local_steps": 10, "batch_size": 32, "dirichlet": 10.0},
        **{"noise_multiplier": 1.0, "delta": 1e-5, "accountant": "rdp", "seed": 0},
        **options,
    )


class Stopwatch:
    """Adds up the training times of the clients in this process."""

    def __init__(self):
        self.seconds, self.train = 0.0, FedAdamW.train

    def __call__(self, algorithm, client, received, round):
        start = time.perf_counter()
        try:
            return self.train(algorithm, client, received, round)
        finally:
            self.seconds += time.perf_counter() - start


def in_one_process(name, rounds):
    """Returns the wall time of each round, and the training time of its clients."""
    watch = Stopwatch()
    FedAdamW.train = lambda *arguments: watch(*arguments)
    local = []

    def progress(_):
        local.append(watch.seconds - sum(local))

    chosen = settings(name, rounds)
    try:
        with tempfile.TemporaryDirectory() as out:
            train_in_process(chosen, make_task(chosen), Path(out), progress=progress)
            wall = walls(out)
    finally:
        FedAdamW.train = watch.train
    return wall, local


def on_flower(name, rounds):
    with tempfile.TemporaryDirectory() as out:
        simulate(settings(name, rounds), Path(out))
        return walls(out)


def walls(out):
    return [json.loads(line)["seconds"] for line in (Path(out) / "rounds.jsonl").read_text().splitlines()]


def uploads(name):
    """Returns how many numbers and bytes an upload has, block-wise and coordinate-wise."""
    found = {}
    for aggregation in ("blocks", "coordinates"):
        chosen = settings(name, 1, algorithm_options={"aggregation": aggregation})
        task = make_task(chosen)
        state = make_server(chosen, task, client_sizes(chosen, task)).state
        content = pack({"increment": state["parameters"], "second-moments": state["second-moments"]}, {})
        found[aggregation] = {
            "numbers": sum(
                x.numel() for record in ("parameters", "second-moments") for x in state[record].values()
            ),
            "bytes": sum(record.count_bytes() for record in content.array_records.values()),
        }
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainings", default=",".join(TRAININGS), help="comma-separated, without spaces")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for name in TRAININGS:
        if name not in given.trainings:
            continue
        process, flower, local, first = [], [], [], []
        for _ in range(given.turns):
            wall, clients = in_one_process(name, given.rounds)
            process += wall[1:]
            local += clients[1:]
            wall = on_flower(name, given.rounds)
            first.append(wall[0])
            flower += wall[1:]
        base = statistics.median(local)
        results[name] = {
            "clients_seconds": round(base, 3),
            "process_ratio": round(statistics.median(process) / base, 3),
            "flower_ratio": round(statistics.median(flower) / base, 3),
            "flower_first_round_seconds": round(statistics.median(first), 1),
            "upload": uploads(name),
        }
        print(name, json.dumps(results[name]), flush=True)
        if given.json:
            machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
            given.json.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
