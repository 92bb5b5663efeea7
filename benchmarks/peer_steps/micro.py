"""Times single operations of a step: forms of torch's Adam, and Gaussian draws."""

import statistics
import time

import torch

MILLION = 1_000_000
ADAMS = {"default": {}, "foreach=True": {"foreach": True}, "fused=True": {"fused": True}}


def micro(args):
    """Times each operation on one and two threads, and prints the times. Returns the times by name."""
    report = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for name, operation, per in operations():
            title = f"{name}, {threads} thr"
            report[title] = {key: seconds / per for key, seconds in times_of(operation).items()}
            times = "   ".join(f"{key} {seconds * 1e3:9.3f} ms" for key, seconds in report[title].items())
            print(f"{title:58s} {times}", flush=True)
    return report


def operations():
    """Yields the name of each operation, a function that runs it, and a divisor of its time."""
    for shape, count in (((10 * MILLION,), 1), ((250, 1000), 40)):
        params = [torch.nn.Parameter(torch.randn(shape)) for _ in range(count)]
        for p in params:
            p.grad = torch.randn_like(p)
        for label, options in ADAMS.items():
            optimizer = torch.optim.Adam(params, lr=1e-3, **options)
            yield f"Adam {label}, 10M params in {count} tensor(s)", optimizer.step, 1
    millions = 8
    n = millions * MILLION
    buf, g = torch.empty(n), torch.randn(n)
    yield "torch.randn per 1M", lambda: torch.randn(n), millions
    yield "buf.normal_() per 1M", buf.normal_, millions
    yield "torch.normal(0, s, size) per 1M", lambda: torch.normal(0, 1.5, size=(n,)), millions
    yield "buf.uniform_() per 1M", buf.uniform_, millions
    yield "g.add_(randn) per 1M", lambda: g.add_(torch.randn(n), alpha=1e-3), millions
    yield "g.add_(other) per 1M", lambda: g.add_(buf, alpha=1e-3), millions


def times_of(operation, seconds=1.0, least=5):
    """Repeats an operation for some seconds, and returns the median and the minimum of its times."""
    operation()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < least:
        start = time.perf_counter()
        operation()
        times.append(time.perf_counter() - start)
    return {"median": statistics.median(times), "min": min(times)}
