"""Which tensors of a running model are weights and which are data, and the records of the weights."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from adamas.engines.layouts import Key, Layouts, Workspace
from adamas.engines.records import Record
from adamas.errors import UnsupportedError
from adamas.geometry import Geometry


class Tracker(TorchFunctionMode):
    """Abstract: knows which tensors are weights and which are data; afterwards `uses` holds the records.

    Args:
        names: The trainable parameters and their names.
        inputs: The tensors of the batch.
        n: Number of examples.
        workspace: What is known of the model.
        geometry: The geometry in which norms will be asked, so that some can be taken on the way; None
            while the model is probed for where its examples are.
    """

    def __init__(
        self,
        names: dict[Tensor, str],
        inputs: list[Tensor],
        n: int,
        workspace: Workspace,
        geometry: Geometry | None = None,
    ) -> None:
        super().__init__()
        self.names, self.n, self.workspace, self.geometry = names, n, workspace, geometry
        self.uses: dict[int, tuple[Tensor, list[Record]]] = {}
        self.layouts = Layouts(workspace, n, probing=geometry is None)
        self.anchor = torch.zeros((), requires_grad=True, device=next(iter(names)).device)
        self.tracked: dict[int, Tensor] = {id(p): p for p in names}
        self.data: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.inputs = inputs
        for x in inputs:
            self.data[x] = True
        self.in_backward = False

    def is_tracked(self, t: Any) -> bool:
        """Whether a value is a trainable parameter, or derived from some."""
        return isinstance(t, Tensor) and id(t) in self.tracked

    def is_data(self, t: Tensor) -> bool:
        """Whether a tensor may hold something that differs from example to example."""
        return id(t) not in self.tracked and (t.requires_grad or t in self.data)

    def clean(self, x: Tensor, *weights: Tensor | None) -> bool:
        """The input is data, and every weight is followed or a constant: the fast formulas apply."""
        return self.is_data(x) and all(w is None or not self.is_data(w) for w in weights)

    def names_in(self, *values: Any) -> str:
        """The names of the followed weights among some values, for a message."""
        found = [repr(self.name(t)) for t in tensors_in(values) if self.is_tracked(t)]
        return ", ".join(dict.fromkeys(found))

    def name(self, t: Tensor) -> str:
        """The name of a followed weight."""
        return self.names.get(t) or f"a weight of shape {tuple(t.shape)} derived from parameters"

    def key(self, function: str, *weights: Tensor | None, dim: int) -> Key:
        """What a use is known by from step to step."""
        names = [self.name(w) for w in weights if w is not None and self.is_tracked(w)]
        return "+".join(names), function, dim

    def outside(self) -> bool:
        """Whether a backward runs that is not ours, such as an adversarial step: it leaves no records."""
        if not self.in_backward and torch.is_grad_enabled():
            raise UnsupportedError(
                "The loss differentiates its own gradient. Use engine='vmap' or engine='loop'."
            )
        return not self.in_backward

    def add(self, weight: Tensor, record: Record, function: str) -> None:
        """Keeps the record of a weight that a function used."""
        record.function = function
        self.uses.setdefault(id(weight), (weight, []))[1].append(record)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
