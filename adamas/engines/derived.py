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

from adamas._sums import squared_norms
from adamas.engines.certificate import Squares, behind_jacobian
from adamas.engines.records import Record, chunk_length, materialized, terms_of
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
    parts, lengths, lengths_behind = [], [], []
    around_zero = Geometry(None, geometry.scale) if geometry.center else geometry
    sums = [_Sums(records) for _, records in members]
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        totals, squares_of_totals = zip(*(each.total(rows) for each in sums), strict=True)
        lengths.append(torch.stack(squares_of_totals).sum(0))
        gradients = _pulled_back([t for t, _ in members], leaves, list(totals))
        squares = behind = torch.zeros((), dtype=torch.float64)
        for p, g in zip(leaves, gradients, strict=True):
            k = rows.stop - rows.start
            total = torch.zeros((k, *p.shape), dtype=p.dtype, device=p.device) if g is None else g
            behind = behind + around_zero.squared_norms(p, total)
            for record in direct.get(p, []):
                total = total + record.materialize(rows)
            squares = squares + geometry.squared_norms(p, total)
        parts.append(squares)
        lengths_behind.append(behind)
    for each in sums:
        each.mark()
    result, before = torch.cat(parts), torch.cat(lengths)
    # The gain of the Jacobian, as far as these examples show it.
    gain = float((torch.cat(lengths_behind) / before).nan_to_num(0.0, 0.0).amax()) if n else 0.0
    return behind_jacobian(result, gain * before, leaves[0].dtype)


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


class _Sums:
    """The gradients of a derived weight over all its uses; those whose terms cancel are made in float64."""

    def __init__(self, records: list[Record]) -> None:
        self._records = records
        self._terms = terms_of(records, 1.0)
        self._again = torch.zeros(0, dtype=torch.bool) if self._terms is None else self._terms.isnan() & False

    def total(self, rows: slice) -> tuple[Tensor, Tensor]:
        """The gradients of some examples, and their squares."""
        total = materialized(self._records, rows)
        values = squared_norms(total)
        if self._terms is not None:
            squares = Squares(values, None, self._terms[rows], self._records[0].dtype)
            again = squares.certified(total[0].numel(), 0.0)[1]
            if again is not None:
                self._again[rows] = again
                wide = [record.wide(again.nonzero().squeeze(1) + rows.start) for record in self._records]
                total[again] = materialized(wide, slice(None)).to(total.dtype)
                values[again] = squared_norms(total[again])
        return total, values

    def mark(self) -> None:
        """Marks the examples that were made in float64 for the sum."""
        for record in self._records:
            record.retaken = self._again if bool(self._again.any()) else None
