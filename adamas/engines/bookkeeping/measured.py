"""Takes norms in the backward, while a layer's output gradient is in the cache."""

import time

import torch
from torch import Tensor

from adamas.engines.bookkeeping.certificate import Squares
from adamas.engines.bookkeeping.convolution import Convolution
from adamas.engines.bookkeeping.derived import weights_of
from adamas.engines.bookkeeping.norms import certified
from adamas.engines.bookkeeping.outer import Outer
from adamas.engines.bookkeeping.records import CHUNKED, Dense, Record, in_memory_like
from adamas.engines.bookkeeping.row_map import RowMap
from adamas.engines.bookkeeping.tracking import Tracker
from adamas.geometry import Geometry


def row_map_of(recorder: Tracker, w: Tensor) -> RowMap | None:
    """Returns the closed form of a derived weight's norm, if there is one and the geometry allows it."""
    geometry = recorder.geometry
    if geometry is None or not recorder.is_tracked(w) or w in recorder.names:
        return None
    if torch.is_autocast_enabled(w.device.type) or w.dtype not in (torch.float32, torch.float64):
        return None  # 16 bits do not tell one form from another
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return None  # checkpointing: the Jacobian's tensors do not exist before the backward
    leaves = weights_of(w, recorder.names.keys())
    if any(isinstance(geometry.scale[p], Tensor) or geometry.center_of(p) is not None for p in leaves):
        return None
    return RowMap.fit(w, leaves)


def measured(
    recorder: Tracker, record: Outer | Convolution, w: Tensor, row_map: RowMap | None, y: Tensor | None
) -> Record:
    """Takes norms that need per-example gradients, and keeps these for the sum if they are not large.

    Args:
        recorder: The recorder of the step, with its geometry.
        record: The use of a weight.
        w: The weight.
        row_map: The closed form of its norm, if it is a derived weight that has one.
        y: The layer's output without its bias, if it was kept.
    """
    start = time.perf_counter()
    result = _with_norms(recorder, record, w, row_map, y)
    result.seconds = time.perf_counter() - start
    return result


def _with_norms(
    recorder: Tracker, record: Outer | Convolution, w: Tensor, row_map: RowMap | None, y: Tensor | None
) -> Record:
    geometry, n = recorder.geometry, recorder.n
    assert geometry is not None
    known = w in recorder.names
    full = known and isinstance(geometry.scale[w], Tensor)
    cheap = (record.gram_pays() and not full) or (isinstance(record, Outer) and record.places == 1)
    keep = n * w.numel() <= record.most_kept * sum(t.numel() for t in record.tensors())
    if known and cheap:
        return record
    if row_map is not None and cheap:
        assert y is not None
        record.whitened = _scaled(row_map.of_record(record, y), geometry, row_map)
        return record
    if not known and row_map is None and not keep:
        return record
    # Fewer calls for norms save more time than the additional cache misses cost.
    step = (4 if keep else 1) * record.chunk()
    in_order = row_map is not None or full or (known and geometry.center_of(w) is not None)
    buffer = record.empty(n if keep else step, by_rows=in_order)
    aligned = in_memory_like(buffer, w, geometry) if known else geometry
    taken = []
    for i in range(0, n, step):
        rows = slice(i, min(i + step, n))
        part = record.materialize_into(buffer[rows] if keep else buffer[: rows.stop - i], rows)
        if known:
            taken.append(aligned.squared_norms(w, part))
        elif row_map is not None:
            taken.append(row_map.row_sums(part))
    record.forget_windows()
    result = Dense(buffer, f"{CHUNKED}, kept") if keep else record
    # If gradients are kept, the sum adds the very gradients whose norms were taken.
    terms = None if keep else record.terms(geometry.least_scale(w) if known else 1.0)
    if known:
        squares = Squares(torch.cat(taken), None, terms, record.dtype)
        result.whitened = certified(squares, [result], w, geometry)
    elif row_map is not None:
        result.whitened = _scaled(row_map.of_rows(torch.cat(taken, 1), terms), geometry, row_map)
    return result


def _scaled(squares: Tensor | None, geometry: Geometry, row_map: RowMap) -> Tensor | None:
    """Whitens by the scale of the parameter behind a weight, which is a number (`row_map_of`)."""
    s = float(geometry.scale[row_map.leaf])
    return None if squares is None else squares / s / s
