r"""Computes whitened norms of a weight's per-example gradients from the records of all its uses."""

import torch
from torch import Tensor

from adamas._numerics.sums import squared_norms
from adamas.engines.bookkeeping.certificate import OF_NORM, Squares, of_products, unit
from adamas.engines.bookkeeping.lookup import Lookup
from adamas.engines.bookkeeping.outer import Outer
from adamas.engines.bookkeeping.records import Dense, Record, chunk_length, materialized, terms_of
from adamas.geometry import Geometry


def merged(records: list[Record]) -> list[Record]:
    """Merges several uses of one weight into as few records as give exact cross terms."""
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
    """Computes `|(G_i - c)/s|^2` of the sum of a weight's records, float64, never below the true value."""
    if len(records) == 1 and records[0].whitened is not None:
        return records[0].whitened
    squares = _closed_form(records, p, geometry)
    if squares is None:
        values = _direct(records, p, geometry, slice(None))
        squares = Squares(values, None, terms_of(records, geometry.scale[p]), records[0].dtype)
    return certified(squares, records, p, geometry)


def certified(squares: Squares, records: list[Record], p: Tensor, geometry: Geometry) -> Tensor:
    """Adds a bound on the rounding; computes examples that lost too much in float64, also for the sum."""
    high, again = squares.certified(p.numel())
    s = geometry.scale[p]
    if again is not None and squares.terms is not None and isinstance(s, Tensor):  # a closer look, before
        rows = again.nonzero().squeeze(1)
        terms = terms_of([record.kept(rows) for record in records], s, close=True)
        high[rows], still = squares.part(rows, terms).certified(p.numel())
        again = None if still is None else again.masked_scatter(again, still)
    for record in records:
        record.retaken = again
    if again is not None:
        rows = again.nonzero().squeeze(1)
        high[rows] = _retaken(records, p, geometry, rows)
    return high


def _retaken(records: list[Record], p: Tensor, geometry: Geometry, rows: Tensor) -> Tensor:
    """Computes the same for some examples, directly and in float64."""
    parts = []
    for chunk in torch.split(rows, chunk_length(p.numel())):
        wide = [record.wide(chunk) for record in records]
        sparse = isinstance(wide[0], Lookup) and geometry.center_of(p) is None
        squares = _closed_form(wide, p, geometry) if sparse else None
        if squares is None:
            values = _direct(wide, p, geometry, slice(None))
            terms = terms_of(wide, geometry.scale[p], close=True)
            squares = Squares(values, OF_NORM * unit(values.dtype) * values, terms, values.dtype)
        parts.append(squares.certified(p.numel())[0])
    return torch.cat(parts)


def _closed_form(records: list[Record], p: Tensor, geometry: Geometry) -> Squares | None:
    """Computes the norms by formulas that need no gradients; None if there is no such formula."""
    s, c = geometry.scale[p], geometry.center_of(p)
    full = isinstance(s, Tensor) and s.dim() > 0
    center = None if c is None else torch.as_tensor(c, dtype=p.dtype, device=p.device).expand_as(p)
    if len(records) > 1:
        return _tied_squares(records, float(s)) if not full and center is None else None
    (record,) = records
    constant = None if center is None else geometry.center_square(p)
    if full:
        assert isinstance(s, Tensor)
        return record.scaled_squares(center, s, constant)
    return _expanded(record, center, float(s), constant)


def _expanded(record: Record, center: Tensor | None, s: float, constant: float | None) -> Squares | None:
    """Computes `(|G|^2 - 2 <G, c>) / s^2 + |c/s|^2` if the record has formulas for its parts."""
    squares = record.squares()
    if squares is None or center is None or constant is None:
        return None if squares is None else squares.scaled(s)
    products = record.products(center.to(record.dtype))
    if products is None:
        return None
    return squares.scaled(s).around(products, constant, record.product_error(), s)


def _tied_squares(records: list[Record], s: float) -> Squares | None:
    """Computes norms of a tied embedding and output layer without V x d matrices: squares and cross terms."""
    if len(records) != 2:
        return None
    head, table = records
    if not isinstance(head, Outer) or not isinstance(table, Lookup) or head.transposed:
        return None
    own = OF_NORM * unit(head.dtype)
    first, second = head.squares(), table.squares()
    if first is None:
        first = Squares(_chunked_squares(head), None, head.terms(1.0), head.dtype)
    cross, size = torch.empty((2, head.n), dtype=torch.float64, device=head.a.device)
    of_a, of_e = (torch.linalg.vector_norm(t, dim=2) for t in (head.a, table.e))
    for i in range(head.n):
        # sum_{t,u} <table.e_t, head.a_u> head.e_u[index_t]
        picked = head.e[i][:, table.indices[i]]
        cross[i] = ((head.a[i] @ table.e[i].t()) * picked).double().sum()
        size[i] = of_a[i] @ picked.abs() @ of_e[i]
    errors = own * (first.values + second.values) + 2 * of_products(table.e.shape[2], head.dtype) * size
    if first.errors is not None:
        errors = errors + first.errors
    terms = terms_of(records, 1.0)
    return Squares(first.values + second.values + 2 * cross, errors, terms, head.dtype).scaled(s)


def _chunked_squares(record: Record) -> Tensor:
    size = record.materialize(slice(0, 1)).numel()
    step = chunk_length(size)
    return torch.cat(
        [squared_norms(record.materialize(slice(i, i + step))) for i in range(0, record.n, step)]
    )


def _direct(records: list[Record], p: Tensor, geometry: Geometry, rows: slice | Tensor) -> Tensor:
    """Computes the same by materializing the gradients of this one weight, in chunks of examples."""
    n = records[0].n
    index = torch.arange(n, device=p.device)[rows]
    step = chunk_length(p.numel())
    parts = [torch.zeros(0, dtype=torch.float64, device=p.device)]
    for start in range(0, len(index), step):
        chunk: slice | Tensor = index[start : start + step]
        if isinstance(rows, slice):
            chunk = slice(start, start + step)
        parts.append(geometry.squared_norms(p, materialized(records, chunk)))
    for record in records:
        record.forget_windows()
    return torch.cat(parts)
