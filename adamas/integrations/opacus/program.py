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
        name: The expression that reaches it, such as `batch['x']`; None for any tensor of the batch, where
            only the number of examples matters.
    """

    name: str | None


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """A call on values of the batch.

    Attributes:
        function: What is called; None for the model.
        args: Its arguments, with nodes in place of values of the batch.
        kwargs: The same, by name.
        differentiable: Whether gradients were enabled.
        line: Where the user wrote it.
        versions: How often each constant tensor among the arguments had been changed.
    """

    function: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    differentiable: bool = field(default_factory=torch.is_grad_enabled)
    line: str = field(default_factory=user_line)
    versions: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", self._versions())

    def _versions(self) -> tuple[int, ...]:
        tensors = (value for _, value in named_tensors([list(self.args), dict(self.kwargs)]))
        return tuple(0 if value.is_inference() else value._version for value in tensors)

    def check_constants(self) -> None:
        """Raises if a tensor among the arguments was changed after the call was written down."""
        if self._versions() != self.versions:
            raise RuntimeError(
                f"A tensor that the loop used at {self.line} was changed in place before loss.backward(), "
                "which computes with its values. Change it after backward(), or use a clone()."
            )

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
                "one, a part of it or a copy; regularise by the optimizer's weight_decay. Freeze another "
                "model, such as a teacher, by requires_grad_(False)."
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
        self._check()

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """Runs the program on a batch."""
        tensors = dict(named_tensors(batch))
        values: dict[Leaf | Node, Any] = {}
        for node in self._order:
            if isinstance(node, Leaf):
                values[node] = next(iter(tensors.values())) if node.name is None else tensors[node.name]
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
            node.name
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

    def _check(self) -> None:
        """Raises if a later run would differ: by constants, or by gradients where the loop had none."""
        of_model: set[Leaf | Node] = set()
        for node in self._order:
            if isinstance(node, Node):
                node.check_constants()
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
