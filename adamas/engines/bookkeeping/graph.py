"""Checks the autograd graph of the losses: every step of the backward must be torch's own, or ours."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.utils.checkpoint import CheckpointFunction

from adamas.engines.bookkeeping import functions
from adamas.engines.leaves import refuse_leaf
from adamas.errors import UnsupportedError

# Functions in Python whose backward keeps examples apart. A re-entrant checkpoint runs its forward again in
# the backward, where the recorder sees it.
_KNOWN: set[Any] = {CheckpointFunction} | {
    value
    for value in vars(functions).values()
    if isinstance(value, type) and issubclass(value, torch.autograd.Function)
}


@contextmanager
def seen_functions(follow: Callable[[Any, tuple[Any, ...], Any], None]) -> Iterator[None]:
    """Reports every call of a custom autograd function, which no mode of torch sees.

    Args:
        follow: Gets the function, its arguments and its result.
    """
    plain = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain.__get__(None, cls)(*args, **kwargs)
        if cls not in _KNOWN:
            follow(cls, args, result)
        return result

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = plain  # type: ignore[method-assign]


def check_graph(
    losses: Tensor,
    params: Mapping[Tensor, str] | None,
    anchor: Tensor,
    is_data: Callable[[Tensor], bool],
    followed: Collection[int],
) -> None:
    """Raises if a step of the backward is not known, or ends at a leaf that is not the model's.

    Args:
        losses: The losses of a batch, or what a checkpoint differentiates.
        params: The trainable parameters and their names; None for any leaves.
        anchor: The leaf that recorded functions share.
        is_data: Tells whether a leaf is data of the batch.
        followed: Identities of nodes of custom functions whose backward is checked when it runs.
    """
    if losses.grad_fn is None:
        return
    seen: set[Any] = {losses.grad_fn}
    todo: list[Any] = [losses.grad_fn]
    while todo:
        node = todo.pop()
        following = node.next_functions
        if not following:
            leaf: Any = getattr(node, "variable", None)
            own = params is None or leaf is None or leaf is anchor or leaf in params
            if not own and not is_data(leaf):
                refuse_leaf(leaf)
        if not isinstance(node, BackwardCFunction) or id(node) in followed:
            pass
        elif node._forward_cls not in _KNOWN:  # type: ignore[attr-defined]
            name = node._forward_cls.__qualname__  # type: ignore[attr-defined]
            raise UnsupportedError(
                f"The backward runs {name}, a function of Python that may mix the gradients of examples (a "
                "custom torch.autograd.Function, or a backward hook of a module). Use functions of torch, or "
                "engine='loop'."
            )
        for other, _ in following:
            if other is not None and other not in seen:
                seen.add(other)
                todo.append(other)
