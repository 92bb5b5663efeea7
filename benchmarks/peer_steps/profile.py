"""Shows where a step spends its time: phases, processor time, page faults and operators of torch."""

import contextlib
import resource
import statistics
import sys
import time

import torch

from peer_steps.catalog import described, make_stepper


def profile(args):
    """Profiles each method on each workload, and prints the results. Returns them by workload and method."""
    torch.set_num_threads(args.threads)
    report = {}
    for workload in args.workloads:
        for method in args.methods:
            try:
                stepper, model, x, y = make_stepper(args, workload, method, args.clip, args.sigma)
                with contextlib.redirect_stdout(sys.stderr):
                    stepper.setup(model)
                    for _ in range(args.warmup):
                        stepper.step(x, y)
            except Exception as error:
                print(f"{workload} {method}: {described(error)}")
                continue
            found = profile_stepper(stepper, x, y, args)
            report.setdefault(workload, {})[method] = found
            print_profile(f"{workload} {method}", found)
    return report


def profile_stepper(stepper, x, y, args):
    before = resource.getrusage(resource.RUSAGE_SELF)
    phases = median_phases(stepper, x, y, args.reps)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "phases": phases,
        "ops": top_operators(stepper, x, y, args.top),
        "user": (after.ru_utime - before.ru_utime) / args.reps,
        "kernel": (after.ru_stime - before.ru_stime) / args.reps,
        "page_faults": (after.ru_minflt - before.ru_minflt) // args.reps,
    }


def median_phases(stepper, x, y, steps):
    """Returns the median seconds of each phase of a step, and of the regions that the method names."""
    inside = {}  # region -> its seconds in this step

    def timed(function, label):
        def call(*args, **kwargs):
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                inside[label] = inside.get(label, 0.0) + time.perf_counter() - start

        return call

    for owner, attribute, label in stepper.regions():
        setattr(owner, attribute, timed(getattr(owner, attribute), label))
    rows = []
    for _ in range(steps):
        inside.clear()
        t0 = time.perf_counter()
        loss = stepper.forward(x, y)
        t1 = time.perf_counter()
        stepper.backward(loss)
        t2 = time.perf_counter()
        stepper.update()
        t3 = time.perf_counter()
        rows.append({"forward": t1 - t0, "backward": t2 - t1, "update": t3 - t2, "step": t3 - t0, **inside})
    return {phase: statistics.median(row[phase] for row in rows) for phase in rows[0]}


def top_operators(stepper, x, y, count, steps=2):
    """Returns the operators that take most time: name, share in per cent, calls per step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            stepper.step(x, y)
    operators = sorted(profiler.key_averages(), key=lambda each: -each.self_cpu_time_total)
    total = sum(each.self_cpu_time_total for each in operators)
    return [
        (each.key, 100 * each.self_cpu_time_total / total, each.count // steps) for each in operators[:count]
    ]


def print_profile(title, found):
    phases = dict(found["phases"])
    step, user, kernel = phases.pop("step"), found["user"], found["kernel"]
    print(f"\n## {title}: step {step * 1e3:.1f} ms")
    shares = [f"{key} {time * 1e3:.1f} ms ({100 * time / step:.0f}%)" for key, time in phases.items()]
    print("  " + ", ".join(shares))
    print(
        f"  CPU per step: user {user * 1e3:.1f} ms, kernel {kernel * 1e3:.1f} ms "
        f"({100 * kernel / (user + kernel):.0f}%), {found['page_faults']} page faults"
    )
    for name, share, calls in found["ops"]:
        print(f"    {share:5.1f}%  {calls:5d} calls  {name}")
    sys.stdout.flush()
