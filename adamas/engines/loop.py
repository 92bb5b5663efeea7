"""Computes one example at a time: slow, obviously right, and the reference of all tests."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from adamas._nests import batch_length, map_tensors
from adamas.engines.base import Loss, Materialized, check_losses, trainable_parameters
from adamas.engines.leaves import leaves_of


class Loop(Materialized):
    """Calls the model on batches of one example and differentiates each loss by itself.

    Needs: nothing but a model that takes a batch of one. Memory: the gradients of one example, and
    those that fit in the cache.
    """

    def __init__(self, model: nn.Module, loss: Loss, batch: Any) -> None:
        super().__init__([slice(i, i + 1) for i in range(batch_length(batch))])
        self._model, self._loss, self._batch = model, loss, batch

    @property
    def parameters(self) -> list[Tensor]:
        """See `Materialized.parameters`."""
        return list(trainable_parameters(self._model).values())

    def _gradients(self, rows: slice) -> Mapping[Tensor, Tensor]:
        params = self.parameters
        example = map_tensors(lambda x: x[rows], self._batch)
        with torch.enable_grad():
            losses = check_losses(self._loss(self._model, example), 1)
            gradients = _gradients(losses[0], params)
        return {p: g.unsqueeze(0) for p, g in zip(params, gradients, strict=True)}


def _gradients(loss: Tensor, params: list[Tensor]) -> list[Tensor]:
    """Differentiates as a training loop does, which re-entrant checkpoints require."""
    leaves = {id(p): p for p in (*params, *leaves_of(loss))}.values()
    before = [p.grad for p in leaves]
    try:
        for p in params:
            p.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
    finally:
        for p, gradient in zip(leaves, before, strict=True):
            p.grad = gradient
