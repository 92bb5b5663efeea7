r"""Weights that a model computes from its parameters: standardised, normalised, re-parametrised.

Where a layer uses :math:`t = f(p)`, an example's gradient for :math:`p` is :math:`J^T G_i`, with its gradient
:math:`G_i` for :math:`t` and the Jacobian :math:`J` of :math:`f`. In general that takes a vector-Jacobian
product for each example. For the usual normalisations of the rows of a weight matrix
(`adamas.engines.bookkeeping.row_map`) the norm of the product has a closed form.
"""

import functools
import math
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from adamas._numerics.sums import squared_norms
from adamas.engines.base import empty_sums
from adamas.engines.bookkeeping.certificate import Squares, behind_jacobian
from adamas.engines.bookkeeping.records import Record, add_weighted_sum, chunk_length, materialized, terms_of
from adamas.engines.leaves import computes_in_16_bits, leaves_of
from adamas.geometry import Geometry

Derived: TypeAlias = list[tuple[Tensor, list[Record]]]
"""Derived weights, and the records of their uses."""

# Period of the scattered values: a prime number, which is not the width of a weight's rows.
_PERIOD = 65537


def weights_of(t: Tensor, params: Collection[Tensor]) -> list[Tensor]:
    """Returns the parameters that a derived weight depends on."""
    known = set(map(id, params))
    return [leaf for leaf in leaves_of(t) if id(leaf) in known]


def grouped(derived: Derived, params: Collection[Tensor]) -> list[tuple[list[Tensor], Derived]]:
    """Groups derived weights that share parameters, together with these parameters."""
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
    """Computes squared whitened norms over the parameters of a group, which may also be used directly."""
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
    """Computes the same for some examples by Jacobian products."""
    sums = [_Sums(t, records) for t, records in members]
    own = {p: direct.get(p, []) for p in leaves}
    size = sum(p.numel() for p in leaves) + sum(t.numel() for t, _ in members)
    every = slice(0, len(index)) if len(index) == members[0][1][0].n else None
    parts, lengths = [], []
    for start in range(0, len(index), step := chunk_length(size)):
        stop = min(start + step, len(index))
        rows = index[start:stop] if every is None else slice(start, stop)
        totals = [each.total(rows) for each in sums]
        parts.append(_squares(leaves, sums, own, geometry, totals, rows))
        lengths.append(torch.stack([squared_norms(total) for total in totals]))
    squares, before = torch.cat(parts), torch.cat(lengths, 1)
    again = torch.zeros_like(squares, dtype=torch.bool)
    for each, values in zip(sums, before, strict=True):
        again |= each.mark(index, values)
    for chosen in torch.split(again.nonzero().squeeze(1), step) if bool(again.any()) else ():
        totals = [each.total(index[chosen]) for each in sums]
        squares[chosen] = _squares(leaves, sums, own, geometry, totals, index[chosen])
        before[:, chosen] = torch.stack([squared_norms(total) for total in totals])
    _forget_windows(members)
    gain = _gain([t for t, _ in members], leaves, geometry)
    return behind_jacobian(squares, gain * before.sum(0), leaves[0].dtype)


def _squares(
    leaves: list[Tensor],
    sums: "list[_Sums]",
    own: Mapping[Tensor, list[Record]],
    geometry: Geometry,
    totals: list[Tensor],
    rows: slice | Tensor,
) -> Tensor:
    """Computes squared whitened norms of some examples from their gradients for the derived weights."""
    gradients = _pulled_back([each.weight for each in sums], leaves, totals)
    squares = torch.zeros((), dtype=torch.float64)
    for p, g in zip(leaves, gradients, strict=True):
        k = len(totals[0])
        total = torch.zeros((k, *p.shape), dtype=p.dtype, device=p.device) if g is None else g
        for record in own[p]:
            total = total + record.materialize(rows)
        squares = squares + geometry.squared_norms(p, total)
    return squares


def add_derived_sums(derived: Derived, weights: Tensor, out: Mapping[Tensor, Tensor]) -> None:
    """Adds the weighted sums of the examples' gradients behind derived weights to those of the parameters.

    One vector-Jacobian product serves all examples. In 16 bits, also of steps between, it would round the sum
    by more than an example may move it; there, the gradients whose norms were taken are added up one by one.
    """
    params = list(out)
    for leaves, members in grouped(derived, params):
        outputs = [t for t, _ in members]
        if not computes_in_16_bits(outputs):
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
        _forget_windows(members)


def _forget_windows(members: Derived) -> None:
    for _, records in members:
        for record in records:
            record.forget_windows()


def _gain(outputs: list[Tensor], leaves: list[Tensor], geometry: Geometry) -> float:
    """Measures the squared gain of the Jacobian on a fixed vector, which does not depend on any example."""
    vectors = [scattered(t.numel(), t).view(1, *t.shape) for t in outputs]
    before = float(torch.stack([squared_norms(v) for v in vectors]).sum())
    around_zero = Geometry(None, {p: geometry.scale[p] for p in leaves})
    given = [v[0] for v in vectors]
    pulled = torch.autograd.grad(outputs, leaves, given, retain_graph=True, allow_unused=True)
    found = [(p, g.unsqueeze(0)) for p, g in zip(leaves, pulled, strict=True) if g is not None]
    squares = [float(around_zero.squared_norms(p, g)) for p, g in found]
    return sum(squares) / before if before else 0.0


def scattered(n: int, like: Tensor) -> Tensor:
    """Returns values in [-1, 1] without a pattern that a Jacobian could have; read-only."""
    period = _scattered(like.dtype, like.device)
    return period[:n] if n <= _PERIOD else period.repeat(-(-n // _PERIOD))[:n]


@functools.lru_cache(maxsize=8)
def _scattered(dtype: torch.dtype, device: torch.device) -> Tensor:
    phase = torch.arange(1, _PERIOD + 1, dtype=torch.float64, device=device).square() * math.sqrt(2)
    return torch.cos(2 * math.pi * phase.frac()).to(dtype)


def _pulled_back(outputs: list[Tensor], leaves: list[Tensor], rows: list[Tensor]) -> list[Tensor | None]:
    """Computes vector-Jacobian products of a chunk of examples: `(k, *p.shape)` for each parameter."""
    settings: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
    try:
        return list(torch.autograd.grad(outputs, leaves, rows, is_grads_batched=True, **settings))
    except RuntimeError:  # such as a checkpoint that draws dropout masks when it is run again
        each = [torch.autograd.grad(outputs, leaves, one, **settings) for one in zip(*rows, strict=True)]
        return [
            None if any(g is None for g in parts) else torch.stack(parts) for parts in zip(*each, strict=True)
        ]


class _Sums:
    """Gradients of a derived weight over all its uses; in float64 where their terms cancel."""

    def __init__(self, weight: Tensor, records: list[Record]) -> None:
        self.weight, self._records = weight, records
        self._terms = terms_of(records, 1.0)
        for record in records:
            record.retaken = None

    def total(self, rows: slice | Tensor) -> Tensor:
        """Computes the gradients of some examples."""
        total = materialized(self._records, rows)
        retaken = self._records[0].retaken
        if retaken is not None and bool(retaken[rows].any()):
            chosen = torch.arange(len(retaken), device=total.device)[rows][retaken[rows]]
            wide = [record.wide(chosen) for record in self._records]
            total[retaken[rows]] = materialized(wide, slice(None)).to(total.dtype)
        return total

    def mark(self, index: Tensor, values: Tensor) -> Tensor:
        """Marks the examples that are to be computed in float64, also for the sum.

        Args:
            index: The examples.
            values: The squares of their gradients.
        """
        nobody = torch.zeros_like(values, dtype=torch.bool)
        if self._terms is None:
            return nobody
        squares = Squares(values, None, self._terms[index], self._records[0].dtype)
        again = squares.certified(self.weight.numel(), 0.0)[1]
        if again is None:
            return nobody
        retaken = torch.zeros(self._records[0].n, dtype=torch.bool, device=values.device)
        retaken[index[again]] = True
        for record in self._records:
            record.retaken = retaken
        return again
