"""The child process of a measurement: one workload and one method, with commands on standard input."""

import json
import os
import resource
import sys
import time
import traceback

import torch

from peer_steps.catalog import described, make_stepper


def work(args):
    """Answers each line of standard input, a number of steps, with their times and the memory growth so far, as JSON.

    The first line of output says whether the method runs the workload at all.
    """
    answers = claim_stdout()

    def say(**answer):
        print(json.dumps(answer), file=answers, flush=True)

    try:
        torch.set_num_threads(args.threads)
        stepper, model, x, y = make_stepper(args, args.workload, args.method, args.clip, args.sigma)
        sizes = {
            "params": sum(p.numel() for p in model.parameters()),
            "trainable": sum(p.numel() for p in model.parameters() if p.requires_grad),
        }
        first_peak = peak_of_life()
        reset_peak()
        base = memory_now()
        stepper.setup(model)
        start = time.perf_counter()
        for _ in range(args.warmup):
            stepper.step(x, y)
        warm = (time.perf_counter() - start) / args.warmup
    except Exception as error:  # a method that cannot run a workload is a result, too
        if args.verbose:
            traceback.print_exc()
        say(ok=False, error=described(error))
        return
    say(ok=True, **sizes, warm=warm, rss_base=base)
    for line in sys.stdin:
        wall, cpu = [], []
        for _ in range(int(line)):
            start = time.perf_counter(), time.process_time()
            stepper.step(x, y)
            wall.append(time.perf_counter() - start[0])
            cpu.append(time.process_time() - start[1])
        say(wall=wall, cpu=cpu, peak_growth=peak_now() - base, ru_growth=peak_of_life() - first_peak)


def claim_stdout():
    """Returns a file for the answers. Anything else that is printed goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return answers


def memory_now():
    """Returns the resident memory, in bytes."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_now():
    """Returns the largest resident memory since `reset_peak`, in bytes."""
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


def reset_peak():
    """Resets the peak of the resident memory, where the kernel permits it."""
    try:
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
    except OSError:
        pass


def peak_of_life():
    """Returns the largest resident memory of this process and its ancestors, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
