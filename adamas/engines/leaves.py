"""The leaves of an autograd graph."""

from collections.abc import Iterator
from typing import Any, NoReturn

from torch import Tensor

from adamas.errors import UnsupportedError


def leaves_of(t: Tensor) -> Iterator[Tensor]:
    """Yields the tensors that a differentiable tensor is a function of."""
    seen: set[Any] = set()
    todo: list[Any] = [t.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        todo += [following for following, _ in node.next_functions]


def refuse_leaf(leaf: Tensor) -> NoReturn:
    """Raises for a tensor that requires a gradient and is not the model's."""
    raise UnsupportedError(
        f"loss(model, batch) depends on a tensor of shape {tuple(leaf.shape)} that requires a gradient and "
        "is not a trainable parameter of the model: its gradient would have no noise. Make it a parameter of "
        "the model, or call requires_grad_(False) on it."
    )
