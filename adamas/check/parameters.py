"""Checks that only parameters of the model train, and that they are real numbers."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from adamas._nests import named_tensors
from adamas.check.base import FAIL, PASS, Outcome, Replay
from adamas.check.replay import examples_of
from adamas.engines import trainable_parameters
from adamas.run.loop import model_randomness


def real_parameters(replay: Replay) -> Outcome:
    """Looks at the number types of the trainable parameters."""
    named = trainable_parameters(replay.still.model)
    odd = [name for name, p in named.items() if not p.is_floating_point()]
    if odd:
        return FAIL, f"{odd[0]!r} is of type {named[odd[0]].dtype}, of which the noise would not be as stated"
    return PASS, f"{len(named)} trainable parameters are real numbers"


def loss_parameters(replay: Replay) -> Outcome:
    """Follows the losses back to their leaves, and looks for parameters that are not the model's."""
    run = replay.still
    data = examples_of(run, replay.batch.together)
    with model_randomness(run.noise.seed, 0), torch.enable_grad():
        losses = run.loss(run.model, data)
    mine = {id(p) for p in run.model.parameters()} | {id(x) for _, x in named_tensors(data)}
    leaves = list(_leaves(losses))
    foreign = [leaf for leaf in leaves if id(leaf) not in mine]
    if foreign:
        shape = tuple(foreign[0].shape)
        return FAIL, f"the losses depend on a parameter of shape {shape} that is not the model's"
    return PASS, f"the losses depend on {len(leaves)} parameters, all of them the model's"


def _leaves(result: Tensor) -> Iterator[Tensor]:
    """The tensors that would get a gradient by `result.backward()`."""
    waiting: list[Any] = [result.grad_fn]
    known = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in known:
            continue
        known.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting += [following for following, _ in node.next_functions]
