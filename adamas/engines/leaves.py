"""The leaves of an autograd graph, and the types in which it computes."""

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from torch import Tensor
from torch.autograd.function import BackwardCFunction

from adamas._numerics.sums import accumulation_dtype
from adamas.errors import UnsupportedError


def leaves_of(t: Tensor) -> Iterator[Tensor]:
    """Yields the tensors that a differentiable tensor is a function of."""
    for node in _nodes_of([t]):
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf


def computes_in_16_bits(outputs: Iterable[Tensor]) -> bool:
    """Tells whether a gradient may pass 16 bits on its way from outputs to leaves.

    Autocast rounds within a function whose inputs and results are in float32. The types within a custom
    autograd function are not known: it may, too.
    """
    return any(
        isinstance(node, BackwardCFunction)
        or any(accumulation_dtype(each.dtype) != each.dtype for each in node._input_metadata)
        for node in _nodes_of(outputs)
    )


def _nodes_of(outputs: Iterable[Tensor]) -> Iterator[Any]:
    seen: set[Any] = set()
    todo: list[Any] = [t.grad_fn for t in outputs]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        todo += [following for following, _ in node.next_functions]


def refuse_leaf(leaf: Tensor) -> NoReturn:
    """Raises for a tensor that requires a gradient and is not the model's."""
    raise UnsupportedError(
        f"loss(model, batch) depends on a tensor of shape {tuple(leaf.shape)} that requires a gradient and "
        "is not a trainable parameter of the model: its gradient would have no noise. Make it a parameter of "
        "the model, or call requires_grad_(False) on it."
    )
