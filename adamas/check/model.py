"""Checks of model and loss: does each example's gradient belong to it alone, and is it the right one?"""

import torch
from torch import Tensor, nn

from adamas._nests import map_tensors
from adamas._replay import examples_of, run_geometry
from adamas.check.base import (
    FAIL,
    NOT_APPLICABLE,
    PASS,
    STEPS,
    Outcome,
    Replay,
    agree,
    distance,
    gradients,
    losses,
    tolerance,
)
from adamas.engines import ENGINES
from adamas.loading import dataset_length
from adamas.run import PrivateRun, model_randomness


def mixed_examples(replay: Replay) -> Outcome:
    """Exchanges the other examples of a batch, and takes them away, and looks at one example's gradient."""
    run, places = replay.still, replay.places()
    n = dataset_length(run.loader.dataset)
    if len(places) < 2:
        return NOT_APPLICABLE, "the data set has one example"
    together = examples_of(run, places)
    apart = 0.0
    for position, place in enumerate(places):
        mine = gradients(run, together, position)
        others = [(other + 1) % n for other in places]
        others[position] = place
        apart = max(apart, distance(mine, gradients(run, examples_of(run, others), position)))
        if not replay.random:  # alone, dropout would draw another mask
            apart = max(apart, distance(mine, gradients(run, examples_of(run, [place]), 0)))
    compared = "exchanged" if replay.random else "exchanged, and taken away"
    others_count = len(places) - 1
    seen = (
        f"the other {others_count} examples of a batch {compared}: a gradient moved by {apart:.2g} of itself"
    )
    return (PASS if apart <= tolerance(run) else FAIL), seen


def deterministic_forward(replay: Replay) -> Outcome:
    """Repeats a forward from the same state of torch's generators."""
    run = replay.still
    data = replay.examples(run)
    first = losses(run, data)
    same = all(agree(first, losses(run, data)) for _ in range(2))
    return (PASS if same else FAIL), (
        f"three forwards with the same random state {'agree' if same else 'differ'}"
    )


def dropout(replay: Replay) -> Outcome:
    """Repeats one example in a batch, and then exchanges all but one, with the same random state."""
    if not replay.random:
        return NOT_APPLICABLE, "the forward draws no random values"
    run, places = replay.still, replay.places()
    rows = max(8, len(places))
    copies = [losses(run, examples_of(run, [place] * rows)) for place in places[:4]]
    if all(agree(repeated, repeated[:1].expand_as(repeated)) for repeated in copies):
        return FAIL, f"{rows} copies of an example have one mask"
    for place in places[:4]:
        others = [places[-1] if place != places[-1] else places[0]] * (rows - 1)
        a, b = (losses(run, examples_of(run, [place, *rest])) for rest in ([place] * (rows - 1), others))
        if not agree(a[:1], b[:1]):
            return FAIL, "an example's mask depends on the other examples"
    return PASS, f"{rows} copies of an example have masks of their own, whatever the other examples are"


def autograd_gradients(replay: Replay) -> Outcome:
    """Compares the engine's gradients and norms with plain autograd, example by example."""
    run = replay.still
    apart = _against_autograd(run, replay, None)
    if apart is None:
        return NOT_APPLICABLE, "the forward draws random values in evaluation mode, too"
    seen = f"engine {run.engine}: gradients and norms differ from autograd's by {apart:.2g} of themselves"
    return (PASS if apart <= tolerance(run) else FAIL), seen


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


def frozen_parameters(replay: Replay) -> Outcome:
    """Trains a few steps, and compares what is frozen, bit by bit."""
    frozen = [name for name, p in replay.still.model.named_parameters() if not p.requires_grad]
    if not frozen:
        return NOT_APPLICABLE, "no parameter is frozen"
    run = replay.fresh()
    before = {name: p.detach().clone() for name, p in run.model.named_parameters() if name in frozen}
    trained = 0
    for step in run:
        trained = step.number
        if trained == STEPS:
            break
    now = dict(run.model.named_parameters())
    changed = [name for name, value in before.items() if not torch.equal(now[name].detach(), value)]
    if changed:
        return FAIL, f"{changed[0]!r} is frozen, and changed within {trained} steps"
    return PASS, f"{len(frozen)} frozen parameters are the same after {trained} steps, bit by bit"


def _against_autograd(run: PrivateRun, replay: Replay, params: set[Tensor] | None) -> float | None:
    """How far the engine's gradients and norms are from autograd's; None for a forward that cannot rest."""
    training = [(module, module.training) for module in run.model.modules()]
    try:
        if replay.random:  # masks differ between engines
            run.model.eval()
            data = replay.examples(run)
            if not all(
                agree(losses(run, data, step=0), losses(run, data, step=step)) for step in range(1, 5)
            ):
                return None
        return max(_apart(run, place, replay.places(), params) for place in replay.places())
    finally:
        for module, was in training:
            _set_training(module, was)


def _apart(run: PrivateRun, place: int, places: list[int], params: set[Tensor] | None) -> float:
    """The distance for one example of a batch, in gradient and in norm."""
    geometry, position = run_geometry(run), places.index(place)
    data = examples_of(run, places)
    alone = map_tensors(lambda x: x[position : position + 1], data)
    expected = gradients(run, alone, 0)
    with model_randomness(run.noise.seed, 0):
        engine = ENGINES[run.engine](run.model, run.loss, data)
        norm = float(engine.norms(geometry)[position])
        weights = torch.zeros(len(places), dtype=torch.float64)
        weights[position] = 1.0
        device = next(iter(expected)).device
        found = dict(engine.weighted_sum(weights.to(device)))
    squares = sum(float(geometry.whiten(p, g.double()).square().sum()) for p, g in expected.items())
    off = abs(norm - squares**0.5) / squares**0.5 if squares > 0 else norm
    kept = expected.keys() if params is None else params
    return max(distance({p: found[p] for p in kept}, {p: expected[p] for p in kept}), off)


def _set_training(module: nn.Module, training: bool) -> None:
    module.training = training
