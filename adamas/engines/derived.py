r"""Weights that a model computes from its parameters: standardised, normalised, re-parametrised.

Where a layer uses :math:`t = f(p)`, an example's gradient for :math:`p` is :math:`J^T G_i`, with its gradient
:math:`G_i` for :math:`t` and the Jacobian :math:`J` of :math:`f`. In general that takes a vector-Jacobian
product for each example. For the usual normalisations of the rows of a weight matrix
(`adamas.engines.row_map`) the norm of the product has a closed form.
"""

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from adamas.engines.records import Record, chunk_length
from adamas.geometry import Geometry

Derived: TypeAlias = list[tuple[Tensor, list[Record]]]
"""Derived weights, and the records of their uses."""


def leaves_of(t: Tensor, params: Collection[Tensor]) -> list[Tensor]:
    """The parameters of which a derived weight is a function."""
    found: list[Tensor] = []
    seen, todo = set(), [t.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and leaf in params:
            found.append(leaf)
        todo += [following for following, _ in node.next_functions]
    return found


def grouped(derived: Derived, params: Collection[Tensor]) -> list[tuple[list[Tensor], Derived]]:
    """Derived weights that share parameters, together with these parameters."""
    groups: list[tuple[list[Tensor], Derived]] = []
    for t, records in derived:
        leaves, members = leaves_of(t, params), [(t, records)]
        apart = []
        for other in groups:
            if any(any(p is q for q in leaves) for p in other[0]):
                leaves += [p for p in other[0] if not any(p is q for q in leaves)]
                members += other[1]
            else:
                apart.append(other)
        groups = [*apart, (leaves, members)]
    return groups


def derived_squares(
    leaves: list[Tensor], members: Derived, direct: Mapping[Tensor, list[Record]], geometry: Geometry
) -> Tensor:
    """Squared whitened norms over the parameters of a group, which may have uses of their own."""
    if len(members) == 1 and len(members[0][1]) == 1 and not any(p in direct for p in leaves):
        taken = members[0][1][0].whitened
        if taken is not None:
            return taken
    size = sum(p.numel() for p in leaves) + sum(t.numel() for t, _ in members)
    n = members[0][1][0].n
    step = chunk_length(size)
    parts = []
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        gradients = _pulled_back(
            [t for t, _ in members], leaves, [_total(records, rows) for _, records in members]
        )
        squares = torch.zeros((), dtype=torch.float64)
        for p, g in zip(leaves, gradients, strict=True):
            k = rows.stop - rows.start
            total = torch.zeros((k, *p.shape), dtype=p.dtype, device=p.device) if g is None else g
            for record in direct.get(p, []):
                total = total + record.materialize(rows)
            squares = squares + geometry.squared_norms(p, total)
        parts.append(squares)
    return torch.cat(parts)


def _pulled_back(outputs: list[Tensor], leaves: list[Tensor], rows: list[Tensor]) -> list[Tensor | None]:
    """Vector-Jacobian products of a chunk of examples: `(k, *p.shape)` for each parameter."""
    settings: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
    try:
        return list(torch.autograd.grad(outputs, leaves, rows, is_grads_batched=True, **settings))
    except RuntimeError:  # such as a checkpoint that draws dropout masks when it is run again
        each = [torch.autograd.grad(outputs, leaves, one, **settings) for one in zip(*rows, strict=True)]
        return [
            None if any(g is None for g in parts) else torch.stack(parts) for parts in zip(*each, strict=True)
        ]


def _total(records: list[Record], rows: slice) -> Tensor:
    total = records[0].materialize(rows)
    for record in records[1:]:
        total = total + record.materialize(rows)
    return total
