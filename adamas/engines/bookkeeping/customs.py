"""Follows custom autograd functions of the user's, through hooks on their backward."""

from typing import Any

import torch
from torch import Tensor

from adamas.engines.bookkeeping.arguments import tensors_in
from adamas.engines.bookkeeping.tracking import Tracker


def follow(recorder: Tracker, function: Any, args: tuple[Any, ...], result: Any) -> None:
    """Follows a custom autograd function: its forward was seen, its backward is checked while it runs.

    The gradients of its outputs are marked as the outputs are. Those that it returns must have their examples
    where the inputs have theirs.
    """
    inputs, outputs = tensors_in(args), tensors_in(result)
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in outputs):
        return
    if not any(map(recorder.is_data, inputs)):
        for t in outputs:
            if t.requires_grad:
                recorder.tracked[id(t)] = t
        return
    marks = [recorder.mark(t) for t in args if isinstance(t, Tensor)]
    own = recorder.mark(result) if isinstance(result, Tensor) else None
    if (
        own is None
        or own.place is None
        or any(map(recorder.is_tracked, inputs))
        or len(marks) != len(inputs)
        or any(m is not None and m.why is not None for m in marks)
    ):
        return  # refused by `check_graph`
    name = function.__qualname__

    def before(gradients: tuple[Tensor | None, ...]) -> None:
        recorder.in_custom = True
        for g in gradients:
            if g is not None:
                recorder.set_mark(g, own)

    def after(gradients: tuple[Tensor | None, ...], _: Any) -> None:
        recorder.in_custom = False
        if len(gradients) != len(marks):
            recorder.refuse_mixing(f"the backward of {name} is not proven")
        for g, mark in zip(gradients, marks, strict=True):
            found = None if g is None else recorder.mark(g)
            if g is not None and mark is not None and (found is None or found.place != mark.place):
                why = found.why if found is not None and found.why else "its gradients are at another place"
                recorder.refuse_mixing(f"the backward of {name} is not proven: {why}")

    node = result.grad_fn
    assert node is not None
    node.register_prehook(before)
    node.register_hook(after)
    recorder.customs.add(id(node))
