"""Checks that each example's gradient is right, and depends on no other example."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from adamas.check.base import FAIL, NOT_APPLICABLE, PASS, Outcome, Replay
from adamas.check.measures import (
    agree,
    apart,
    finite,
    gradients,
    length,
    losses,
    relative,
    rows_of,
    tolerance,
    unusable_rows,
)
from adamas.check.replay import examples_of
from adamas.run.loop import PrivateRun, model_randomness

NONE_USABLE = "no example of the batch has a finite gradient"


def mixed_examples(replay: Replay) -> Outcome:
    """Exchanges and removes the other examples of a batch, and compares one example's gradient."""
    count, moved, compared = len(replay.batch.together), 0.0, False
    if count < 2:
        return NOT_APPLICABLE, "the data set has one example, or micro_batch_size is 1"
    for run in (replay.still, replay.later):
        data, pairs = examples_of(run, replay.batch.together), []
        unusable = unusable_rows(run, data)
        usable = [j for j in range(count) if j not in unusable]
        if not usable:
            continue
        # Autograd multiplies what is NaN by 0, so that it would spoil the gradients of all examples.
        sound = rows_of(data, [j if j in usable else usable[0] for j in range(count)])
        if unusable and not agree(losses(run, data)[usable], losses(run, sound)[usable]):
            return FAIL, f"{len(unusable)} examples without a finite gradient change the losses of the others"
        for i in replay.in_time(i for i in replay.batch.chosen if i in usable):
            others = [(j // 2 * 2 + count // 2) % count for j in range(count)]  # every other one, and twice
            others[i] = i
            mine = gradients(run, sound, i)
            pairs.append(apart(mine, gradients(run, rows_of(sound, others), i)))
            if not replay.random:  # alone, dropout would draw another mask
                pairs.append(apart(mine, gradients(run, rows_of(sound, [i]), 0)))
        moved, compared = max(moved, relative(pairs)), compared or bool(pairs)
    if not compared:
        return NOT_APPLICABLE, NONE_USABLE
    changed = "exchanged" if replay.random else "exchanged, and taken away"
    seen = (
        f"the other {count - 1} examples of a batch {changed}, at the start and after "
        f"{replay.later.steps_done} steps: a gradient moved by {moved:.2g} of itself"
    )
    return (PASS if moved <= tolerance(replay.still) else FAIL), seen


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
    copies = [losses(run, rows_of(data, [i] * rows)) for i in range(min(4, last + 1))]
    if all(agree(repeated, repeated[:1].expand_as(repeated)) for repeated in copies):
        return FAIL, f"{rows} copies of an example have one mask"
    for i, alike in enumerate(copies):
        others = losses(run, rows_of(data, [i, *[last if i != last else 0] * (rows - 1)]))
        if not agree(alike[:1], others[:1]):
            return FAIL, "an example's mask depends on the other examples"
    return PASS, f"{rows} copies of an example have masks of their own, whatever the other examples are"


def autograd_gradients(replay: Replay) -> Outcome:
    """Compares the engine's gradients and norms on a batch with plain autograd, example by example."""
    differences = [_against_autograd(run, replay, None) for run in (replay.still, replay.later)]
    if isinstance(first := differences[0], str):
        return NOT_APPLICABLE, first
    most = max(value for value in differences if not isinstance(value, str))
    seen = (
        f"engine {replay.still.engine}, {len(replay.batch.together)} examples at a time, at the start and "
        f"after {replay.later.steps_done} steps: gradients and norms differ from autograd's by {most:.2g} "
        "of themselves"
    )
    return (PASS if most <= tolerance(replay.still) else FAIL), seen


def tied_parameters(replay: Replay) -> Outcome:
    """Compares the gradients of parameters that the model has under several names."""
    run = replay.still
    names: dict[Tensor, list[str]] = {}
    for name, p in run.model.named_parameters(remove_duplicate=False):
        names.setdefault(p, []).append(name)
    tied = {p: found for p, found in names.items() if len(found) > 1 and p.requires_grad}
    if not tied:
        return NOT_APPLICABLE, "no trainable parameter has two names"
    most = _against_autograd(run, replay, set(tied))
    if isinstance(most, str):
        return NOT_APPLICABLE, most
    words = ", ".join(" = ".join(map(repr, found)) for found in tied.values())
    seen = f"{words}: engine {run.engine} differs from autograd by {most:.2g}"
    return (PASS if most <= tolerance(run) else FAIL), seen


def _against_autograd(run: PrivateRun, replay: Replay, params: set[Tensor] | None) -> float | str:
    """Measures how far the engine is from autograd, in gradients and norms; a text says why it cannot."""
    data, geometry = examples_of(run, replay.batch.together), run.geometry()
    weighed, measured = [], []
    with _at_rest(run, replay.random):
        if replay.random and not all(
            agree(losses(run, data, step=0), losses(run, data, step=step)) for step in range(1, 5)
        ):
            return "the forward draws random values in evaluation mode, too"
        for i in replay.in_time(replay.batch.chosen):
            expected = gradients(run, rows_of(data, [i]), 0)
            with model_randomness(run.noise.seed, 0):
                engine = run.make_engine(run.model, run.loss, data)
                norm = float(engine.norms(geometry)[i])
                weights = torch.zeros(len(replay.batch.together), dtype=torch.float64)
                weights[i] = 1.0
                found = engine.weighted_sum(weights.to(next(iter(expected)).device))
            if not math.isfinite(norm) and not finite(expected):
                continue  # unusable, as the engine says
            stated = length({p: geometry.whiten(p, g.double()) for p, g in expected.items()})
            measured.append((abs(norm - stated), stated))
            weighed.append(apart({p: g for p, g in expected.items() if params is None or p in params}, found))
    return max(relative(weighed), relative(measured)) if measured else NONE_USABLE


@contextmanager
def _at_rest(run: PrivateRun, random: bool) -> Iterator[None]:
    """Sets evaluation mode if the forward draws random values, because masks differ between engines."""
    training = [(module, module.training) for module in run.model.modules()]
    if random:
        run.model.eval()
    try:
        yield
    finally:
        for module, was in training:
            module.training = was
