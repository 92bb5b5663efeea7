"""Tries model and loss on a few examples: can per-example gradients be exact?"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from adamas._numerics import batch_length, map_tensors, named_tensors
from adamas.engines.base import Loss, check_losses
from adamas.errors import UnsupportedError


def check_loss(model: nn.Module, loss: Loss, sample: Any) -> None:
    """Tries the loss on a few examples: shape, dependence between examples, changed state.

    Nothing is left on the model, and no value of the data appears in an error.
    """
    n = batch_length(sample)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with torch.enable_grad():
            inputs = map_tensors(_differentiable, sample)
            losses = check_losses(loss(model, inputs), n)
            leaves = [(name, x) for name, x in named_tensors(inputs) if x.requires_grad]
            if leaves and n > 1:
                for (name, _), g in zip(leaves, _input_gradients(losses[0], leaves), strict=True):
                    if g is not None and g[1:].nan_to_num().any():
                        raise UnsupportedError(_MIXED + f" (the first example's loss depends on {name}[1:].)")
        changed = [
            name for name, b in model.named_buffers() if not torch.equal(b, before[name]) and _finite(b)
        ]
        if changed:
            raise UnsupportedError(
                f"The forward changes the buffer {changed[0]!r}, so an example's gradient depends on the "
                "examples before it. Freeze the module that owns it with .eval(), or remove the update."
            )
        if n > 1:
            _compare_alone(model, loss, sample, n)
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])


def _input_gradients(loss: Tensor, leaves: list[tuple[str, Tensor]]) -> list[Tensor | None]:
    try:
        return list(torch.autograd.grad(loss, [x for _, x in leaves], allow_unused=True))
    except RuntimeError as error:
        if "use_reentrant" not in str(error):
            raise
        return [None] * len(leaves)  # re-entrant checkpointing knows no inputs; the values are compared below


def _compare_alone(model: nn.Module, loss: Loss, sample: Any, n: int) -> None:
    with _evaluation(model.modules()), torch.no_grad():
        together = loss(model, sample)
        alone = torch.cat([loss(model, _example(sample, i)) for i in range(n)])
    tolerance = min(0.1, 1000 * torch.finfo(together.dtype).eps)
    differ = (together - alone).abs() > tolerance * (1 + alone.abs())  # False for NaN
    if (differ | (together.isfinite() != alone.isfinite())).any():
        raise UnsupportedError(_MIXED + " (The loss of an example differs when it is alone in its batch.)")


_MIXED = (
    "loss(model, batch) mixes the examples of a batch, so that no clipping bounds one example's influence. "
    "Make each loss a function of its own example: no statistics over the batch, no in-batch negatives, "
    "and the example axis first in every tensor."
)


def _example(sample: Any, i: int) -> Any:
    return map_tensors(lambda x: x[i : i + 1], sample)


def _differentiable(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_() if x.is_floating_point() else x


def _finite(x: Tensor) -> bool:
    return not x.is_floating_point() or bool(x.isfinite().all())


@contextmanager
def _evaluation(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Evaluation mode, without dropout; afterwards every module is in the mode in which it was."""
    was = [(module, module.training) for module in modules]
    try:
        for module, _ in was:
            module.training = False
        yield
    finally:
        for module, training in was:
            module.training = training
