r"""The whitened norms of a weight's per-example gradients, from the records of all its uses."""

import torch
from torch import Tensor

from adamas._sums import squared_norms
from adamas.engines.lookup import Lookup
from adamas.engines.outer import Outer
from adamas.engines.records import CANCELLATION, Dense, Record, chunk_length
from adamas.geometry import Geometry


def merged(records: list[Record]) -> list[Record]:
    """Several uses of one weight in as few records as give exact cross terms."""
    if len(records) == 1:
        return records
    result: list[Record] = []
    for transposed in (False, True):
        outer = [r for r in records if isinstance(r, Outer) and r.transposed == transposed]
        if len(outer) > 1:
            a, e = torch.cat([r.a for r in outer], 1), torch.cat([r.e for r in outer], 1)
            outer = [Outer(a, e, transposed)]
        result += outer
    lookups = [r for r in records if isinstance(r, Lookup)]
    if len(lookups) > 1:
        indices, e = torch.cat([r.indices for r in lookups], 1), torch.cat([r.e for r in lookups], 1)
        lookups = [Lookup(indices, e, lookups[0].rows, None)]
    dense = [r for r in records if isinstance(r, Dense)]
    if len(dense) > 1:
        dense = [Dense(torch.stack([r.gradients for r in dense]).sum(0))]
    return [*result, *lookups, *dense, *(r for r in records if not isinstance(r, Outer | Lookup | Dense))]


def squared_whitened_norms(records: list[Record], p: Tensor, geometry: Geometry) -> Tensor:
    """`|(G_i - c)/s|^2` of the sum of some records of one weight, float64."""
    s, c = geometry.scale[p], geometry.center_of(p)
    full = isinstance(s, Tensor) and s.dim() > 0
    center = None if c is None else torch.as_tensor(c, dtype=p.dtype, device=p.device).expand_as(p)
    total: Tensor | None = None
    if len(records) == 1 and records[0].whitened is not None:
        return records[0].whitened
    constant = None if center is None else geometry.center_square(p)
    if len(records) == 1:
        (record,) = records
        if full:
            assert isinstance(s, Tensor)
            total = record.scaled_squares(center, s, constant)
        else:
            total = _expanded(record, center, float(s), constant)
    elif not full and center is None:
        total = _tied_squares(records, float(s))
    if total is None:
        return _direct(records, p, geometry, slice(None))
    if constant is not None:
        near = total < CANCELLATION * constant
        if near.any():
            total[near] = _direct(records, p, geometry, near.nonzero().squeeze(1))
    return total


def _expanded(record: Record, center: Tensor | None, s: float, constant: float | None) -> Tensor | None:
    """`(|G|^2 - 2 <G, c>) / s^2 + |c/s|^2` where the record has formulas for its parts."""
    squares = record.squares()
    if squares is None or center is None or constant is None:
        return squares if squares is None or s == 1.0 else squares / s / s
    products = record.products(center)
    return None if products is None else (squares - 2 * products) / s / s + constant


def _tied_squares(records: list[Record], s: float) -> Tensor | None:
    """A tied embedding and output layer: both squares and twice their product, without V x d matrices."""
    if len(records) != 2:
        return None
    head, table = records
    if not isinstance(head, Outer) or not isinstance(table, Lookup) or head.transposed:
        return None
    first = head.squares()
    if first is None:
        first = _chunked_squares(head)
    cross = torch.empty(head.n, dtype=torch.float64, device=head.a.device)
    for i in range(head.n):
        # sum_{t,u} <table.e_t, head.a_u> head.e_u[index_t]
        cross[i] = ((head.a[i] @ table.e[i].t()) * head.e[i][:, table.indices[i]]).double().sum()
    return (first + table.squares() + 2 * cross) / s / s


def _chunked_squares(record: Record) -> Tensor:
    size = record.materialize(slice(0, 1)).numel()
    step = chunk_length(size)
    return torch.cat(
        [squared_norms(record.materialize(slice(i, i + step))) for i in range(0, record.n, step)]
    )


def _direct(records: list[Record], p: Tensor, geometry: Geometry, rows: slice | Tensor) -> Tensor:
    """The same by materializing the gradients of this one weight, in chunks of examples."""
    n = records[0].n
    index = torch.arange(n, device=p.device)[rows]
    step = chunk_length(p.numel())
    parts = [torch.zeros(0, dtype=torch.float64, device=p.device)]
    for start in range(0, len(index), step):
        chunk: slice | Tensor = index[start : start + step]
        if isinstance(rows, slice):
            chunk = slice(start, start + step)
        gradient = records[0].materialize(chunk)
        for record in records[1:]:
            gradient = gradient + record.materialize(chunk)
        parts.append(geometry.squared_norms(p, gradient))
    return torch.cat(parts)
