"""Computes per-example gradients with `torch.func.vmap`, in chunks of examples."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import CheckpointFunction

from adamas._nests import batch_length, map_tensors, named_tensors
from adamas.engines.base import Loss, Materialized, check_losses, trainable_parameters
from adamas.errors import UnsupportedError

# Maximum bytes of gradients per chunk; a chunk has at least one example.
_CHUNK_BYTES = 32 << 20


class Vmap(Materialized):
    """Differentiates the loss of one example, vectorised over the examples of a chunk.

    Needs: a model that `torch.func.vmap` accepts: no `.item()`, no data-dependent control flow, no
    buffer that the forward changes. Memory: batch x parameters, in chunks.

    Args:
        model: The model, as it is; it is neither wrapped nor changed.
        loss: One loss per example.
        batch: Tensors with the example axis first, nested in mappings, lists or tuples.
        chunk_size: Examples per chunk; by default as many as fit in 32 MiB of gradients.
    """

    def __init__(self, model: nn.Module, loss: Loss, batch: Any, chunk_size: int | None = None) -> None:
        self._named = trainable_parameters(model)
        n = batch_length(batch)
        if chunk_size is None:
            one = sum(p.numel() * p.element_size() for p in self._named.values())
            chunk_size = max(1, _CHUNK_BYTES // max(1, one))
        super().__init__([slice(i, min(i + chunk_size, n)) for i in range(0, n, chunk_size)])
        self._objective = _Objective(model, loss)
        self._batch = batch

    @property
    def parameters(self) -> list[Tensor]:
        """See `Materialized.parameters`."""
        return list(self._named.values())

    def _gradients(self, rows: slice) -> Mapping[Tensor, Tensor]:
        values = {f"model.{name}": p.detach() for name, p in self._named.items()}
        chunk = map_tensors(lambda x: x[rows], self._batch)
        tensors = [x for _, x in named_tensors(chunk)]
        try:
            with torch.enable_grad(), _without_checkpoints():
                result = vmap(grad(self._one_loss), in_dims=(None, 0, None), randomness="different")(
                    values, tensors, chunk
                )
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise UnsupportedError(
                f"engine='vmap' cannot run {type(self._objective.model).__name__}: "
                f"{str(error).splitlines()[0]} Use engine='loop'."
            ) from error
        return {p: result[f"model.{name}"].detach() for name, p in self._named.items()}

    def _one_loss(self, values: dict[str, Tensor], tensors: list[Tensor], chunk: Any) -> Tensor:
        # vmap supports lists of tensors, but not every container that a collate_fn may return.
        remaining = iter(tensors)
        example = map_tensors(lambda _: next(remaining).unsqueeze(0), chunk)
        losses = functional_call(self._objective, values, (example,))
        return check_losses(losses, 1)[0]


@contextmanager
def _without_checkpoints() -> Iterator[None]:
    """Runs checkpoints as plain functions, since vmap supports neither kind."""

    def apply(function: Any, preserve: bool, *args: Any) -> Any:
        return function(*args)

    def without_hooks(*args: Any, **kwargs: Any) -> Iterator[None]:
        yield

    plain = checkpoints._checkpoint_without_reentrant_generator
    CheckpointFunction.apply = staticmethod(apply)  # type: ignore[method-assign]
    checkpoints._checkpoint_without_reentrant_generator = without_hooks
    try:
        yield
    finally:
        del CheckpointFunction.apply
        checkpoints._checkpoint_without_reentrant_generator = plain


class _Objective(nn.Module):
    """Model and loss as one module, so that `functional_call` can replace the parameters."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Any) -> Tensor:
        return self._loss(self.model, batch)
