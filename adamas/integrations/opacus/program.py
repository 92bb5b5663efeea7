"""Programs: the computation of a training loop on a batch, recorded without the batch.

A loop over deferred values computes nothing. It leaves nodes, each a call with its arguments, and the
private step runs them on the data. Nodes hold functions and constants only, and no data.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from adamas._nests import map_leaves, named_leaves, named_tensors
from adamas.engines.bookkeeping.counts import user_line
from adamas.errors import UnsupportedError


@dataclass(frozen=True, eq=False, slots=True)
class Leaf:
    """A tensor of the batch.

    Attributes:
        place: Its number among the tensors of the batch.
    """

    place: int


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """A call on values of the batch.

    Attributes:
        function: What is called; None for the model.
        args: Its arguments, with nodes in place of values of the batch.
        kwargs: The same, by name.
        differentiable: Whether gradients were enabled.
        line: Where the user wrote it.
    """

    function: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    differentiable: bool = field(default_factory=torch.is_grad_enabled)
    line: str = field(default_factory=user_line)

    def inputs(self) -> Iterator["Leaf | Node"]:
        """Yields the nodes among the arguments."""
        for _, value in named_leaves([list(self.args), dict(self.kwargs)]):
            if isinstance(value, Leaf | Node):
                yield value


def check_call(node: Node) -> Node:
    """Returns a node that can run later with the same result; raises for another one."""
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            raise UnsupportedError(
                f"Expected no torch.autocast around the loop's calls ({node.line}): the private step runs "
                "them later, outside of it. Use autocast within the model's forward."
            )
    for _, value in named_tensors([list(node.args), dict(node.kwargs)]):
        if value.requires_grad:
            raise UnsupportedError(
                f"A value of the batch meets a tensor that requires a gradient at {node.line}, outside of "
                "the module that make_private returned. Call that module as a whole, and not the original "
                "one or a part of it; regularise by the optimizer's weight_decay."
            )
    return node


class Program:
    """The nodes that a loss is computed from, in an order in which they can run.

    Attributes:
        line: Where the user wrote the call that runs, or that raised; None between the calls.
    """

    def __init__(self, result: Leaf | Node) -> None:
        self.line: str | None = None
        self._result = result
        self._order = list(_ordered(result))
        self._check_gradients()

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """Runs the program on a batch."""
        tensors = [tensor for _, tensor in named_tensors(batch)]
        values: dict[Leaf | Node, Any] = {}
        for node in self._order:
            if isinstance(node, Leaf):
                values[node] = tensors[node.place]
                continue
            args, kwargs = map_leaves((Leaf, Node), values.__getitem__, (list(node.args), dict(node.kwargs)))
            function = model if node.function is None else node.function
            self.line = node.line
            values[node] = function(*args, **kwargs)
            self.line = None
        result: Tensor = values[self._result]
        return result

    def signature(self) -> tuple[Any, ...]:
        """Returns what the computation is, apart from numbers and constant tensors."""
        places = {node: place for place, node in enumerate(self._order)}
        return tuple(
            node.place
            if isinstance(node, Leaf)
            else (
                node.function,
                *(
                    (name, _kind(value, places))
                    for name, value in named_leaves([list(node.args), dict(node.kwargs)])
                ),
            )
            for node in self._order
        )

    def _check_gradients(self) -> None:
        """Raises if the loss uses the model's output without gradients, which a later run would have."""
        of_model: set[Leaf | Node] = set()
        for node in self._order:
            if isinstance(node, Node) and (node.function is None or not of_model.isdisjoint(node.inputs())):
                of_model.add(node)
                if not node.differentiable:
                    raise UnsupportedError(
                        f"Expected gradients to be enabled at {node.line}, but it is under torch.no_grad(), "
                        "or in the forward of an autograd.Function, and the loss depends on it. Use "
                        ".detach(), or put the function into the module."
                    )


def _kind(value: Any, places: Mapping["Leaf | Node", int]) -> Any:
    """Returns what must agree between two arguments of one computation."""
    if isinstance(value, Leaf | Node):
        return "node", places[value]
    if isinstance(value, int | float | Tensor) and not isinstance(value, bool):
        return type(value)
    return repr(value)


def _ordered(result: Leaf | Node) -> Iterator[Leaf | Node]:
    """Yields the nodes that a result depends on, each after its inputs."""
    done: set[Leaf | Node] = set()
    todo: list[tuple[Leaf | Node, bool]] = [(result, False)]
    while todo:
        node, ready = todo.pop()
        if node in done:
            continue
        if ready or isinstance(node, Leaf):
            done.add(node)
            yield node
        else:
            todo.append((node, True))
            todo.extend((value, False) for value in node.inputs())
