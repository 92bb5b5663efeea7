"""Checks of model and loss: does each example's gradient belong to it alone, and is it the right one?"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from adamas._nests import map_tensors
from adamas._replay import examples_of, run_geometry
from adamas.check.base import FAIL, NOT_APPLICABLE, PASS, Outcome, Replay
from adamas.check.measures import agree, distance, gradients, length, losses, tolerance
from adamas.engines import ENGINES
from adamas.run import PrivateRun, model_randomness

# Of the longest gradient of a batch: rounding is not measured against what is shorter.
_SHORTEST = 1e-3


def mixed_examples(replay: Replay) -> Outcome:
    """Exchanges the other examples of a batch, and takes them away, and looks at one example's gradient."""
    count, apart = len(replay.batch.together), 0.0
    if count < 2:
        return NOT_APPLICABLE, "the data set has one example, or micro_batch_size is 1"
    for run in (replay.still, replay.later):
        data, found = examples_of(run, replay.batch.together), []
        for i in replay.in_time(replay.batch.chosen):
            others = [(j // 2 * 2 + count // 2) % count for j in range(count)]  # every other one, and twice
            others[i] = i
            batches = [(data, i), (_rows(data, others), i)]
            if not replay.random:  # alone, dropout would draw another mask
                batches.append((_rows(data, [i]), 0))
            found.append([gradients(run, batch, row) for batch, row in batches])
        least = _SHORTEST * max(length(alike[0]) for alike in found)
        apart = max(apart, *(distance(alike[0], g, least) for alike in found for g in alike[1:]))
    compared = "exchanged" if replay.random else "exchanged, and taken away"
    seen = (
        f"the other {count - 1} examples of a batch {compared}, at the start and after "
        f"{replay.later.steps_done} steps: a gradient moved by {apart:.2g} of itself"
    )
    return (PASS if apart <= tolerance(replay.still) else FAIL), seen


def deterministic_forward(replay: Replay) -> Outcome:
    """Repeats a forward from the same state of torch's generators."""
    run = replay.still
    data = examples_of(run, replay.batch.together)
    first = losses(run, data)
    same = all(agree(first, losses(run, data)) for _ in range(2))
    return (PASS if same else FAIL), (
        f"three forwards with the same random state {'agree' if same else 'differ'}"
    )


def dropout(replay: Replay) -> Outcome:
    """Repeats one example in a batch, and then exchanges all but one, with the same random state."""
    if not replay.random:
        return NOT_APPLICABLE, "the forward draws no random values"
    run, rows = replay.still, max(8, len(replay.batch.together))
    data = examples_of(run, replay.few())
    last = len(replay.few()) - 1
    copies = [losses(run, _rows(data, [i] * rows)) for i in range(min(4, last + 1))]
    if all(agree(repeated, repeated[:1].expand_as(repeated)) for repeated in copies):
        return FAIL, f"{rows} copies of an example have one mask"
    for i, alike in enumerate(copies):
        others = losses(run, _rows(data, [i, *[last if i != last else 0] * (rows - 1)]))
        if not agree(alike[:1], others[:1]):
            return FAIL, "an example's mask depends on the other examples"
    return PASS, f"{rows} copies of an example have masks of their own, whatever the other examples are"


def autograd_gradients(replay: Replay) -> Outcome:
    """Compares the engine's gradients and norms on a batch with plain autograd, example by example."""
    differences = [_against_autograd(run, replay, None) for run in (replay.still, replay.later)]
    if None in differences:
        return NOT_APPLICABLE, "the forward draws random values in evaluation mode, too"
    apart = max(value for value in differences if value is not None)
    seen = (
        f"engine {replay.still.engine}, {len(replay.batch.together)} examples at a time, at the start and "
        f"after {replay.later.steps_done} steps: gradients and norms differ from autograd's by {apart:.2g} "
        "of themselves"
    )
    return (PASS if apart <= tolerance(replay.still) else FAIL), seen


def tied_parameters(replay: Replay) -> Outcome:
    """Compares the gradients of parameters that the model has under several names."""
    run = replay.still
    names: dict[Tensor, list[str]] = {}
    for name, p in run.model.named_parameters(remove_duplicate=False):
        names.setdefault(p, []).append(name)
    tied = {p: found for p, found in names.items() if len(found) > 1 and p.requires_grad}
    if not tied:
        return NOT_APPLICABLE, "no trainable parameter has two names"
    apart = _against_autograd(run, replay, set(tied))
    if apart is None:
        return NOT_APPLICABLE, "the forward draws random values in evaluation mode, too"
    words = ", ".join(" = ".join(map(repr, found)) for found in tied.values())
    seen = f"{words}: engine {run.engine} differs from autograd by {apart:.2g}"
    return (PASS if apart <= tolerance(run) else FAIL), seen


def _against_autograd(run: PrivateRun, replay: Replay, params: set[Tensor] | None) -> float | None:
    """How far the engine's gradients and norms are from autograd's; None for a forward that cannot rest."""
    data, chosen = examples_of(run, replay.batch.together), replay.batch.chosen
    with _at_rest(run, replay.random):
        if replay.random and not all(
            agree(losses(run, data, step=0), losses(run, data, step=step)) for step in range(1, 5)
        ):
            return None
        alone = {i: gradients(run, _rows(data, [i]), 0) for i in replay.in_time(chosen)}
        geometry, apart = run_geometry(run), 0.0
        whitened = {
            i: {p: geometry.whiten(p, g.double()) for p, g in gradient.items()}
            for i, gradient in alone.items()
        }
        least = _SHORTEST * max(length(gradient) for gradient in alone.values())
        least_norm = _SHORTEST * max(length(gradient) for gradient in whitened.values())
        for i, expected in alone.items():
            with model_randomness(run.noise.seed, 0):
                engine = ENGINES[run.engine](run.model, run.loss, data)
                norm = float(engine.norms(geometry)[i])
                weights = torch.zeros(len(replay.batch.together), dtype=torch.float64)
                weights[i] = 1.0
                found = dict(engine.weighted_sum(weights.to(next(iter(expected)).device)))
            kept: Mapping[Tensor, Tensor] = expected if params is None else {p: expected[p] for p in params}
            stated = length(whitened[i])
            off = abs(norm - stated) / max(stated, least_norm) if max(stated, least_norm) > 0 else norm
            apart = max(apart, distance(kept, {p: found[p] for p in kept}, least), off)
    return apart


def _rows(data: Any, rows: list[int]) -> Any:
    """These examples of a batch, as another batch."""
    return map_tensors(lambda x: x[torch.tensor(rows, device=x.device)], data)


@contextmanager
def _at_rest(run: PrivateRun, random: bool) -> Iterator[None]:
    """In evaluation mode where the forward draws random values, because masks differ between engines."""
    training = [(module, module.training) for module in run.model.modules()]
    if random:
        run.model.eval()
    try:
        yield
    finally:
        for module, was in training:
            module.training = was
