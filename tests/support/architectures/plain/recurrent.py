"""Recurrent layers and cells, with packed sequences, time-major inputs and initial states."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.support.architectures.batches import lengths
from tests.support.architectures.plain.parts import (
    head,
    param,
    plain,
    sequence,
)
from tests.support.architectures.registry import register


def time_major(m: Any, x: Tensor) -> Tensor:
    out, _ = m.rnn(x.transpose(0, 1))
    return m.head(out.mean(0))


def time_major_last(m: Any, x: Tensor) -> Tensor:
    _, h = m.rnn(x.transpose(0, 1))
    h = h[0] if isinstance(h, tuple) else h
    return m.head(h[-1])


def packed(m: Any, x: Tensor, sizes: Tensor) -> Tensor:
    """Packs sequences in any order, and reads the final state and the outputs."""
    pack = pack_padded_sequence(x, sizes, batch_first=True, enforce_sorted=False)
    out, h = m.rnn(pack)
    h = h[0] if isinstance(h, tuple) else h
    whole, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
    return m.head(torch.cat([*h, whole.sum(1)], 1))


def packed_sorted(m: Any, x: Tensor, sizes: Tensor) -> Tensor:
    """Sorts the sequences by length, packs them, and restores their order."""
    order = sizes.argsort(descending=True)
    pack = pack_padded_sequence(x[order], sizes[order], batch_first=True)
    out, h = m.rnn(pack)
    h = h[0] if isinstance(h, tuple) else h
    whole, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
    back = order.argsort()
    return m.head(torch.cat([*h, whole.sum(1)], 1)[back])


def packed_list(m: Any, x: Tensor, sizes: Tensor) -> Tensor:
    """Reads the lengths as Python numbers, as many tutorials do."""
    pack = pack_padded_sequence(x, sizes.tolist(), batch_first=True, enforce_sorted=False)
    out, _ = m.rnn(pack)
    whole, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
    return m.head(whole.sum(1))


def initial_state(m: Any, x: Tensor) -> Tensor:
    """Starts from a learned initial state."""
    _, h = m.rnn(x, m.state.unsqueeze(1).repeat(1, len(x), 1))
    return m.head(h[-1])


def hand_written_rnn(m: Any, x: Tensor) -> Tensor:
    """Runs a cell over time, on one column of the batch per step."""
    h = x.new_zeros(len(x), 6)
    for step in x.unbind(1):
        h = m.cell(step, h)
    return m.head(h)


def filled_rnn(m: Any, x: Tensor) -> Tensor:
    """Writes the outputs into a buffer."""
    h, outs = torch.zeros(len(x), 6, dtype=x.dtype), torch.zeros(len(x), x.shape[1], 6, dtype=x.dtype)
    for t in range(x.shape[1]):
        h = m.cell(x[:, t], h)
        outs[:, t] = h
    return m.head(outs.mean(1))


def recurrent(kind: Any, heads: int, **options: Any) -> Callable[[], dict[str, Any]]:
    return lambda: dict(rnn=kind(8, 6, **options), head=head(6 * heads))


def cell() -> dict[str, Any]:
    return dict(cell=nn.GRUCell(8, 6), head=head(6))


def register_recurrent() -> None:
    """Adds recurrent layers and cells."""
    both = dict(bidirectional=True)
    for kind in (nn.LSTM, nn.GRU):
        name = kind.__name__
        register(f"{name}, time major", plain(time_major, recurrent(kind, 2, **both), sequence))
        register(
            f"{name}, time major, last state",
            plain(time_major_last, recurrent(kind, 1, num_layers=2), sequence),
        )
        register(
            f"{name}, packed", plain(packed, recurrent(kind, 4, batch_first=True, **both), sequence, lengths)
        )
        register(f"{name}, packed, one direction", plain(packed, recurrent(kind, 2), sequence, lengths))
        register(
            f"{name}, packed, sorted", plain(packed_sorted, recurrent(kind, 4, **both), sequence, lengths)
        )
    register("RNN, packed", plain(packed, recurrent(nn.RNN, 2), sequence, lengths))
    register(
        "LSTM, packed, lengths as numbers",
        plain(packed_list, recurrent(nn.LSTM, 1), sequence, lengths),
        expected="reads lengths of the batch as numbers",
    )
    register(
        "GRU, learned initial state",
        plain(
            initial_state,
            lambda: recurrent(nn.GRU, 1, batch_first=True)() | dict(state=param(1, 6)),
            sequence,
        ),
    )
    register("GRU cell in a loop", plain(hand_written_rnn, cell, sequence))
    register("GRU cell, outputs in a buffer", plain(filled_rnn, cell, sequence))
