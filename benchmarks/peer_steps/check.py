"""Compares the methods' gradients without noise."""

import contextlib
import io

import torch

from peer_steps.catalog import METHODS, described, make_stepper

TOLERANCE = 1e-4


def check(args):
    """Compares each method that clips to a ball with the vmap baseline in float64, and prints the differences.

    The clip is the median norm, so that half of the examples are clipped. Every method runs in float32. A pre-activation
    within rounding of a ReLU's kink makes float32 and float64 differ by about 1e-3 for that example (W3ws), so agreement
    with vmap in float32 counts as well.
    """
    torch.set_num_threads(args.threads)
    return {workload: check_workload(args, workload) for workload in args.workloads}


def check_workload(args, workload):
    stepper, reference = gradients_of(args, workload, "vmap", None, torch.float64)
    norms, clip = stepper.norms, stepper.clip
    _, reference32 = gradients_of(args, workload, "vmap", clip)
    report = {"clip": clip, "norm_min": float(norms.min()), "norm_max": float(norms.max())}
    print(f"{workload}: per-sample norms {norms.min():.3g}..{norms.max():.3g}, clip {clip:.3g}", flush=True)
    for method in args.methods:
        if not METHODS[method].clips_to_ball:
            continue
        try:
            _, found = gradients_of(args, workload, method, clip)
        except Exception as error:
            report[method] = {"error": described(error)}
            print(f"  {method:18s} {described(error)}", flush=True)
            continue
        report[method] = compared(found, reference, reference32)
        print(f"  {method:18s} {sentence(report[method])}", flush=True)
    return report


def gradients_of(args, workload, method, clip, dtype=torch.float32):
    """Makes a step without noise. Returns the method and the gradients by name."""
    stepper, model, x, y = make_stepper(args, workload, method, clip, 0.0, args.seed)
    model = model.to(dtype)
    if hasattr(model, "pos"):
        model.pos = model.pos.to(dtype)
    with contextlib.redirect_stdout(io.StringIO()):
        stepper.setup(model)
        stepper.step(x.to(dtype) if x.is_floating_point() else x, y)
    return stepper, {name: gradient.clone() for name, gradient in stepper.grads().items()}


def compared(found, reference, reference32):
    """Returns the relative differences from both references, and the parameter that differs most."""

    def flat(gradients):
        return torch.cat([gradients[name].flatten() for name in reference]).double()

    size = flat(reference).norm()
    relative = float((flat(found) - flat(reference)).norm() / size)
    relative32 = float((flat(found) - flat(reference32)).norm() / size)
    worst_relative, worst_parameter = max(
        (float((found[name] - gradient).norm() / gradient.norm().clamp(min=1e-12)), name)
        for name, gradient in reference.items()
        if gradient.norm() > 1e-6 * size
    )
    return {
        "rel": relative,
        "rel_vmap32": relative32,
        "worst_param": worst_parameter,
        "worst_rel": worst_relative,
        "ok": min(relative, relative32) < TOLERANCE,
    }


def sentence(row):
    return (
        f"vs vmap float64 {row['rel']:.2e}, vs vmap float32 {row['rel_vmap32']:.2e}, "
        f"worst parameter {row['worst_param']} {row['worst_rel']:.2e}  {'ok' if row['ok'] else 'DIFFERS'}"
    )
