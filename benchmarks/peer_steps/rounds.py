"""Times the methods of each workload in rounds.

Each workload and method has a fresh process, started once. The parent goes round-robin over the methods of a workload, so
that drift of the machine affects all alike. It never imports torch, because a child inherits its parent's ru_maxrss.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path

from peer_steps.catalog import METHODS
from peer_steps.tables import print_table

SCRIPT = Path(__file__).resolve().parents[1] / "peers.py"


class Client:
    """A worker process, from the side of the parent."""

    def __init__(self, args, workload, method):
        command = [sys.executable, str(SCRIPT), "--worker", "--workload", workload, "--method", method]
        for option in ("threads", "clip", "sigma", "warmup", "batch", "seq"):
            value = getattr(args, option)
            command += [] if value is None else [f"--{option}", str(value)]
        command += ["--verbose"] if args.verbose else []
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if args.verbose else subprocess.DEVNULL,
            text=True,
        )
        self.info = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            return {"ok": False, "error": f"worker died (exit {self.process.wait()})"}
        return json.loads(line)

    def run(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self.read()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def bench(args):
    """Measures and prints each workload. Returns a row for each workload and method."""
    results = {}
    for workload in args.workloads:
        results[workload] = measure(args, workload)
        print_table(workload, results[workload], args.batch)
    return results


def measure(args, workload):
    """Returns a row for each method."""
    clients, rows = {}, {}
    for method in args.methods:
        client = Client(args, workload, method)
        rows[method] = dict(client.info, note=METHODS[method].note)
        if client.info["ok"]:
            clients[method] = client
            state = f"ready, {client.info['warm'] * 1e3:.0f} ms warm-up step"
        else:
            state = client.info["error"]
        print(f"  {workload} {method}: {state}", file=sys.stderr, flush=True)
    rounds = {method: [] for method in clients}
    for _ in range(args.reps):
        for method, client in clients.items():
            steps = max(1, min(args.max_steps, int(args.slice / client.info["warm"])))
            rounds[method].append(client.run(steps))
    for method, client in clients.items():
        client.close()
        rows[method] |= summary(rounds[method])
    if "plain" in clients:
        for method in clients:
            rows[method] |= ratios(rows[method], rows["plain"])
    return rows


def summary(rounds):
    """Returns times and memory over all rounds of a method."""
    wall = [seconds for each in rounds for seconds in each["wall"]]
    cpu = [seconds for each in rounds for seconds in each["cpu"]]
    return {
        "steps": len(wall),
        "median": statistics.median(wall),
        "min": min(wall),
        "cpu_median": statistics.median(cpu),
        "peak_growth": rounds[-1]["peak_growth"],
        "ru_growth": rounds[-1]["ru_growth"],
        "cpu_min": min(cpu),
        "round_medians": [statistics.median(each["wall"]) for each in rounds],
    }


def ratios(row, base):
    """Returns times and memory relative to another method."""
    pairs = zip(row["round_medians"], base["round_medians"], strict=True)
    return {
        "ratio": statistics.median(a / b for a, b in pairs),
        "ratio_min": row["min"] / base["min"],
        "ratio_cpu": row["cpu_min"] / base["cpu_min"],
        "mem_ratio": row["peak_growth"] / base["peak_growth"],
    }
