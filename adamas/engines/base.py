"""The protocol of engines, and the base class of those that hold per-example gradients in chunks."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from adamas._numerics.sums import accumulation_dtype
from adamas.errors import UnsupportedError
from adamas.geometry import Geometry


class Loss(Protocol):
    """One loss per example: `loss(model, batch)` of shape `(n,)`."""

    def __call__(self, model: nn.Module, batch: Any, /) -> Tensor:
        """Computes the losses of the batch's examples, without averaging them."""


class Engine(Protocol):
    """The two questions that a private gradient asks of a batch."""

    def norms(self, geometry: Geometry) -> Tensor:
        """Returns the norm of each example's gradient, whitened by the geometry: `(n,)`, float64.

        The norm runs over all trainable parameters together. It is infinite or NaN for an example
        whose gradient is not finite.
        """

    def weighted_sum(
        self, weights: Tensor, out: Mapping[Tensor, Tensor] | None = None, *, accumulate: bool = False
    ) -> Mapping[Tensor, Tensor]:
        """Returns `sum_i weights[i] * g_i` for each trainable parameter.

        An example with weight 0 takes no part, even if its gradient is not finite. The tensors of `out`, if
        given, are overwritten, or added to with `accumulate`.
        """


class EngineFactory(Protocol):
    """Makes engines."""

    def __call__(self, model: nn.Module, loss: Loss, batch: Any, /) -> Engine:
        """Makes an engine for one (micro-)batch."""


class Materialized(ABC):
    """An engine that computes the gradients of a chunk of examples at a time.

    Chunks are kept for `weighted_sum` while they fit in `cache_bytes`; the others are computed a
    second time, from the same state of the random number generators, so that dropout draws the same
    masks and the weights fit the gradients that they were made for.
    """

    cache_bytes = 1 << 30

    def __init__(self, chunks: list[slice]) -> None:
        self._chunks = chunks
        self._cached: dict[int, Mapping[Tensor, Tensor]] = {}
        self._cached_bytes = 0
        self._random_states: dict[int, tuple[Tensor, list[Tensor]]] = {}
        self._taken: tuple[Geometry, dict[int, Tensor]] | None = None  # squared norms by chunk

    @property
    @abstractmethod
    def parameters(self) -> list[Tensor]:
        """Returns the trainable parameters, each once."""

    @abstractmethod
    def _gradients(self, rows: slice) -> Mapping[Tensor, Tensor]:
        """Computes the gradients of the examples in `rows`: `(k, *p.shape)` for each parameter."""

    def norms(self, geometry: Geometry) -> Tensor:
        """See `Engine.norms`."""
        params = self.parameters
        device = params[0].device if params else None
        totals = [torch.zeros(0, dtype=torch.float64, device=device)]
        taken = {index: _squares(self._chunk(index), geometry) for index in range(len(self._chunks))}
        self._taken = geometry, taken
        return torch.cat([*totals, *taken.values()]).sqrt()

    def weighted_sum(
        self, weights: Tensor, out: Mapping[Tensor, Tensor] | None = None, *, accumulate: bool = False
    ) -> Mapping[Tensor, Tensor]:
        """See `Engine.weighted_sum`."""
        result = empty_sums(self.parameters) if out is None else out
        if out is None or not accumulate:
            for total in result.values():
                total.zero_()
        for index, rows in enumerate(self._chunks):
            w = weights[rows]
            kept = w != 0
            if not kept.any():
                continue
            gradients = self._chunk(index)
            if index not in self._cached:
                self._check_same(index, gradients, kept)
            for p, g in gradients.items():
                if not kept.all():
                    g = g[kept]  # 0 x NaN is NaN: such rows must not enter the product
                total = result[p]
                flat = g.reshape(g.shape[0], p.numel()).to(total.dtype)
                total += (w[kept].to(total) @ flat).view(total.shape)
        return result

    def _check_same(self, index: int, gradients: Mapping[Tensor, Tensor], kept: Tensor) -> None:
        """Raises if gradients that were computed again are longer than those that were measured."""
        if self._taken is None:
            return
        geometry, taken = self._taken
        longer = _squares(gradients, geometry) > taken[index] * (1 + 1e-6) + 1e-30
        if bool((longer & kept).any()):
            raise UnsupportedError(
                "The forward gives an example another gradient when it is run again, so that clipping by its "
                "norm bounds nothing. Draw random values by torch's global generator only, and change "
                "neither the batch nor a counter in the forward."
            )

    def _chunk(self, index: int) -> Mapping[Tensor, Tensor]:
        if index in self._cached:
            return self._cached[index]
        if index in self._random_states:
            now = _get_random_state()
            _set_random_state(self._random_states[index])
            try:
                return self._gradients(self._chunks[index])
            finally:
                _set_random_state(now)
        self._random_states[index] = _get_random_state()
        gradients = self._gradients(self._chunks[index])
        size = sum(g.numel() * g.element_size() for g in gradients.values())
        if self._cached_bytes + size <= self.cache_bytes:
            self._cached[index] = gradients
            self._cached_bytes += size
        return gradients


def _squares(gradients: Mapping[Tensor, Tensor], geometry: Geometry) -> Tensor:
    """Computes squared whitened norms over all parameters together."""
    return torch.stack([geometry.squared_norms(p, g) for p, g in gradients.items()]).sum(0)


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters that take part in clipping and noise, by name; a shared one appears once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def empty_sums(params: Iterable[Tensor]) -> dict[Tensor, Tensor]:
    """Allocates a weighted sum, in the type in which sums over examples are kept."""
    return {p: torch.empty(p.shape, dtype=accumulation_dtype(p.dtype), device=p.device) for p in params}


_REMEDY = (
    'Use reduction="none", and sum or average over the axes of one example only. The loss that a model of '
    "Hugging Face returns averages over the batch: use adamas.integrations.losses.for_model(model) instead."
)


def check_losses(losses: Tensor, n: int) -> Tensor:
    """Returns the losses if they are one differentiable number per example; raises otherwise."""
    if not isinstance(losses, Tensor):
        raise TypeError(
            f"Expected loss(model, batch) to return a tensor of one loss per example, got "
            f"{type(losses).__name__}. {_REMEDY}"
        )
    if losses.shape != (n,):
        raise UnsupportedError(
            "Expected loss(model, batch) of shape (n,), one loss per example, got "
            + ("a scalar" if losses.dim() == 0 else f"{losses.dim()} axes, or another length")
            + f". {_REMEDY}"
        )
    if not losses.requires_grad:
        raise UnsupportedError(
            "Expected loss(model, batch) to depend on a trainable parameter, but it needs no gradient. "
            "Do not call it under torch.no_grad(), and do not detach its result."
        )
    return losses


def _get_random_state() -> tuple[Tensor, list[Tensor]]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return torch.get_rng_state(), cuda


def _set_random_state(state: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
