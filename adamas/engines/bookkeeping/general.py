"""The record of a function without a formula of its own: vector-Jacobian products, in chunks of examples.

For norms the function is applied example by example (`vmap`), with a copy of the weight for each example of a
chunk. In float64 the sum takes one product with the whole call, whose output gradients are scaled by the
weights. In fewer bits that product rounds differently from the norm, by an unknown amount. There the sum
adds up the very gradients whose norms were taken, which are kept if they are not large, or computed again.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_unflatten

from adamas._numerics.sums import accumulation_dtype
from adamas.engines.bookkeeping.records import Record, chunk_length
from adamas.errors import UnsupportedError


class Call:
    """A call of a function on weights and data, which can be made again.

    Args:
        func: The function.
        values: Its arguments, flat.
        tree: How they are nested.
        data: Places of the tensors that differ from example to example.
        batched: Those of them with the examples on the first axis.
        title: The call in words, for a refusal.
    """

    def __init__(
        self, func: Any, values: list[Any], tree: TreeSpec, data: list[int], batched: list[int], title: str
    ) -> None:
        self._func, self._values, self._tree = func, values, tree
        self._data, self._batched, self.title = data, batched, title
        self._device = next(value for value in values if isinstance(value, Tensor)).device.type
        self.narrow = torch.is_autocast_enabled(self._device)
        self._dtype = torch.get_autocast_dtype(self._device)

    def __call__(self, changed: dict[int, Tensor]) -> Any:
        """Makes the call, with other tensors in some places."""
        values = [changed.get(i, value) for i, value in enumerate(self._values)]
        args, kwargs = tree_unflatten(values, self._tree)
        with torch.autocast(self._device, self._dtype, enabled=self.narrow):
            return self._func(*args, **kwargs)

    def on(self, data: Sequence[Tensor]) -> "Call":
        """Returns the same call on other data."""
        values = list(self._values)
        for i, t in zip(self._data, data, strict=True):
            values[i] = t
        return self._with(values)

    def without_data(self) -> "Call":
        """Returns the same call without its data, which `on` gives to it."""
        return self._with([None if i in self._data else value for i, value in enumerate(self._values)])

    def of_rows(self, rows: slice | Tensor) -> "Call":
        """Returns the same call for some examples."""
        return self._with([v[rows].detach() if i in self._batched else v for i, v in enumerate(self._values)])

    def _with(self, values: list[Any]) -> "Call":
        call = Call(self._func, values, self._tree, self._data, self._batched, self.title)
        call.narrow, call._dtype = self.narrow, self._dtype
        return call

    def differentiable(self, weights: Sequence[int]) -> tuple[Tensor, dict[int, Tensor]]:
        """Returns the value with a graph down to the weights at some places, and these weights."""
        with torch.enable_grad():
            leaves = {i: self._values[i].detach().requires_grad_() for i in weights}
            return self(leaves), leaves

    def tensors(self) -> list[Tensor]:
        """Returns the data."""
        return [self._values[i] for i in self._data]

    def weight(self, place: int) -> Tensor:
        """Returns the weight at a place."""
        weight: Tensor = self._values[place]
        return weight

    def by_example(self, place: int, copies: Tensor) -> Tensor:
        """Computes the value example by example, with a copy of the weight at a place for each."""
        others = [i for i in self._batched if i != place]

        def one(copy: Tensor, *rows: Tensor) -> Tensor:
            changed = {i: row.unsqueeze(0) for i, row in zip(others, rows, strict=True)}
            return self({place: copy, **changed})[0]  # type: ignore[no-any-return]

        try:
            result: Tensor = torch.func.vmap(one)(copies, *(self._values[i] for i in others))
        except RuntimeError as error:
            self.refuse(str(error).splitlines()[0])
        return result

    def refuse(self, problem: str) -> NoReturn:
        """Raises, with the call in words."""
        raise UnsupportedError(
            f"engine='bookkeeping' cannot follow {self.title}: {problem}. Use engine='vmap' or engine='loop'."
        )


class General(Record):
    """The use of a weight in a call, with output gradients whose first axis is that of the examples.

    Args:
        call: The call.
        place: Where the weight is among its arguments.
        e: Output gradients.
        output: The call's value with a graph, and the weights in it by place, if they are at hand.
    """

    most_kept = 5

    def __init__(
        self, call: Call, place: int, e: Tensor, output: tuple[Tensor, dict[int, Tensor]] | None = None
    ) -> None:
        self._call, self._place, self.e = call, place, e
        self.n = e.shape[0]
        self._output = call.differentiable([place]) if output is None else output
        self._gradients: dict[tuple[int, int], Tensor] = {}  # by first and last example

    def formula(self, per_coordinate: bool) -> str:
        return "vector-Jacobian products in chunks"

    def tensors(self) -> Sequence[Tensor]:
        return (*self._call.tensors(), self.e)

    def materialize(self, rows: slice | Tensor) -> Tensor:
        if self._product_is_exact or not isinstance(rows, slice):
            return self._made(rows)
        start, stop, _ = rows.indices(self.n)
        if (start, stop) in self._gradients:
            return self._gradients[start, stop]
        made = self._made(rows)
        size = self.n * self._call.weight(self._place).numel()
        if size <= self.most_kept * sum(t.numel() for t in self.tensors()):
            self._gradients[start, stop] = made
        return made

    def _made(self, rows: slice | Tensor) -> Tensor:
        call, e, expected = self._call.of_rows(rows), self.e[rows], self._output[0].detach()[rows]
        weight = call.weight(self._place).detach()
        with torch.enable_grad():
            copies = weight.expand(e.shape[0], *weight.shape).detach().requires_grad_()
            result = call.by_example(self._place, copies)
        tolerance = max(1e-3, 4 * torch.finfo(expected.dtype).eps)
        if result.shape != expected.shape or not torch.allclose(
            result.detach(), expected, rtol=tolerance, atol=tolerance / 10, equal_nan=True
        ):
            call.refuse("its result differs when it is applied example by example")
        (gradients,) = torch.autograd.grad(result, copies, e)
        return gradients.to(self.dtype)

    def add_weighted_sum(self, weights: Tensor, out: Tensor, fresh: bool) -> None:
        if not self._product_is_exact:
            self._add_gradients(weights, out, fresh)
            return
        output, leaves = self._output
        scaled = self.e * weights.view(-1, *[1] * (self.e.dim() - 1))
        (total,) = torch.autograd.grad(output, leaves[self._place], scaled, retain_graph=True)
        out.copy_(total) if fresh else out.add_(total)

    def _add_gradients(self, weights: Tensor, out: Tensor, fresh: bool) -> None:
        """Adds gradient by gradient, in the chunks in which norms were taken."""
        if fresh:
            out.zero_()
        step = chunk_length(out.numel())
        for i in range(0, self.n, step):
            rows = slice(i, min(i + step, self.n))
            gradients = self._gradients.get((rows.start, rows.stop))
            gradients = self._made(rows) if gradients is None else gradients
            out += torch.tensordot(weights[rows], gradients, 1)

    @property
    def dtype(self) -> torch.dtype:
        return accumulation_dtype(self._call.weight(self._place).dtype)

    @property
    def _product_is_exact(self) -> bool:
        """Whether the call computes in float64."""
        tensors = (self._output[0], self._call.weight(self._place), self.e)
        return all(t.dtype == torch.float64 for t in tensors) and not self._call.narrow

    def kept(self, rows: slice | Tensor) -> "General":
        return General(self._call.of_rows(rows), self._place, self.e[rows])
