r"""Weights that a model computes from its parameters: standardised, normalised, re-parametrised.

Where a layer uses :math:`t = f(p)`, an example's gradient for :math:`p` is :math:`J^T G_i`, with its gradient
:math:`G_i` for :math:`t` and the Jacobian :math:`J` of :math:`f`. In general that takes a vector-Jacobian
product for each example. For the usual normalisations of the rows of a weight matrix
(`adamas.engines.row_map`) the norm of the product has a closed form.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from adamas._sums import accumulation_dtype, squared_norms
from adamas.engines.base import empty_sums
from adamas.engines.certificate import Squares, behind_jacobian
from adamas.engines.leaves import leaves_of
from adamas.engines.records import Record, add_weighted_sum, chunk_length, materialized, terms_of
from adamas.geometry import Geometry

Derived: TypeAlias = list[tuple[Tensor, list[Record]]]
"""Derived weights, and the records of their uses."""


def weights_of(t: Tensor, params: Collection[Tensor]) -> list[Tensor]:
    """The parameters of which a derived weight is a function."""
    known = set(map(id, params))
    return [leaf for leaf in leaves_of(t) if id(leaf) in known]


def grouped(derived: Derived, params: Collection[Tensor]) -> list[tuple[list[Tensor], Derived]]:
    """Derived weights that share parameters, together with these parameters."""
    groups: list[tuple[list[Tensor], Derived]] = []
    for t, records in derived:
        leaves, members = weights_of(t, params), [(t, records)]
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
    n = members[0][1][0].n
    if len(members) == 1 and len(members[0][1]) == 1 and not any(p in direct for p in leaves):
        taken = members[0][1][0].whitened
        if taken is not None:
            missing = taken.isnan().nonzero().squeeze(1)
            if len(missing):
                taken[missing] = _by_products(leaves, members, direct, geometry, missing)
            return taken
    return _by_products(leaves, members, direct, geometry, torch.arange(n, device=leaves[0].device))


def _by_products(
    leaves: list[Tensor],
    members: Derived,
    direct: Mapping[Tensor, list[Record]],
    geometry: Geometry,
    index: Tensor,
) -> Tensor:
    """The same for some examples by Jacobian products."""
    outputs = [t for t, _ in members]
    gain = _gain(outputs, leaves, geometry)
    sums = [_Sums(records) for _, records in members]
    parts = []
    step = chunk_length(sum(p.numel() for p in leaves) + sum(t.numel() for t in outputs))
    for start in range(0, len(index), step):
        k = min(step, len(index) - start)
        rows: slice | Tensor = index[start : start + k]
        if len(index) == members[0][1][0].n:
            rows = slice(start, start + k)
        totals, lengths = zip(*(each.total(rows) for each in sums), strict=True)
        gradients = _pulled_back(outputs, leaves, list(totals))
        squares = torch.zeros((), dtype=torch.float64)
        for p, g in zip(leaves, gradients, strict=True):
            total = torch.zeros((k, *p.shape), dtype=p.dtype, device=p.device) if g is None else g
            for record in direct.get(p, []):
                total = total + record.materialize(rows)
            squares = squares + geometry.squared_norms(p, total)
        parts.append(behind_jacobian(squares, gain * torch.stack(lengths).sum(0), leaves[0].dtype))
    for each in sums:
        each.mark()
    return torch.cat(parts)


def add_derived_sums(derived: Derived, weights: Tensor, out: Mapping[Tensor, Tensor]) -> None:
    """Adds the weighted sums of the examples' gradients behind derived weights to those of the parameters.

    One vector-Jacobian product does for all; in 16 bits it would round the sum by more than an example may
    move it, so that the gradients whose norms were taken are added up one by one.
    """
    params = list(out)
    for leaves, members in grouped(derived, params):
        outputs = [t for t, _ in members]
        if all(accumulation_dtype(t.dtype) == t.dtype for t in (*outputs, *leaves)):
            totals = empty_sums(outputs)
            with torch.no_grad():
                for t, records in members:
                    add_weighted_sum(records, weights, totals[t], fresh=True)
            found = torch.autograd.grad(
                outputs, leaves, list(totals.values()), retain_graph=True, allow_unused=True
            )
            for p, g in zip(leaves, found, strict=True):
                if g is not None:
                    out[p].add_(g)
            continue
        n = members[0][1][0].n
        step = chunk_length(sum(t.numel() for t in (*outputs, *leaves)))
        for start in range(0, n, step):
            rows = slice(start, min(start + step, n))
            pulled = _pulled_back(outputs, leaves, [materialized(records, rows) for _, records in members])
            for p, each in zip(leaves, pulled, strict=True):
                if each is not None:
                    out[p].add_(torch.tensordot(weights[rows].to(out[p].dtype), each.to(out[p].dtype), 1))


def _gain(outputs: list[Tensor], leaves: list[Tensor], geometry: Geometry) -> float:
    """How much longer the Jacobian makes a vector without a pattern, squared; no example has a say in it."""
    vectors = [scattered(t.numel(), t).view(1, *t.shape) for t in outputs]
    before = float(torch.stack([squared_norms(v) for v in vectors]).sum())
    around_zero = Geometry(None, {p: geometry.scale[p] for p in leaves})
    pulled = zip(leaves, _pulled_back(outputs, leaves, vectors), strict=True)
    squares = [float(around_zero.squared_norms(p, g)) for p, g in pulled if g is not None]
    return sum(squares) / before if before else 0.0


def scattered(n: int, like: Tensor) -> Tensor:
    """Values in [-1, 1] without a pattern that a Jacobian could have."""
    phase = torch.arange(1, n + 1, dtype=torch.float64, device=like.device).square() * math.sqrt(2)
    return torch.cos(2 * math.pi * phase.frac()).to(like.dtype)


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
        device = records[0].tensors()[0].device
        self._again = torch.zeros(records[0].n, dtype=torch.bool, device=device)

    def total(self, rows: slice | Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of some examples, and their squares."""
        total = materialized(self._records, rows)
        values = squared_norms(total)
        if self._terms is not None:
            squares = Squares(values, None, self._terms[rows], self._records[0].dtype)
            again = squares.certified(total[0].numel(), 0.0)[1]
            if again is not None:
                chosen = torch.arange(len(self._again), device=total.device)[rows][again]
                self._again[chosen] = True
                wide = [record.wide(chosen) for record in self._records]
                total[again] = materialized(wide, slice(None)).to(total.dtype)
                values[again] = squared_norms(total[again])
        return total, values

    def mark(self) -> None:
        """Marks the examples that were made in float64 for the sum."""
        for record in self._records:
            record.retaken = self._again if bool(self._again.any()) else None
