"""Stand-ins for recurrent modules, which are written out as linear maps, and for packed sequences."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from adamas.engines.bookkeeping import recurrent
from adamas.engines.bookkeeping.counts import user_line
from adamas.engines.bookkeeping.places import Place, Rows, equal_along
from adamas.engines.bookkeeping.separation import PACKED_SIZES, Mark
from adamas.engines.bookkeeping.tracking import Tracker
from adamas.errors import UnsupportedError

# Functions of torch, and the kinds of cell that they compute.
FUSED_RNNS: dict[Any, str] = {
    torch.lstm: "lstm",
    torch.gru: "gru",
    torch.rnn_tanh: "rnn_tanh",
    torch.rnn_relu: "rnn_relu",
}
RNN_CELLS: dict[Any, str] = {
    torch.lstm_cell: "lstm",
    torch.gru_cell: "gru",
    torch.rnn_tanh_cell: "rnn_tanh",
    torch.rnn_relu_cell: "rnn_relu",
}


def rnn_cell(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Stands in for one place of a recurrent layer."""
    return _rnn_cell(recorder, RNN_CELLS[func], *args)


def _rnn_cell(
    recorder: Tracker, kind: str, x: Tensor, state: Any, wx: Tensor, wh: Tensor, *biases: Tensor
) -> Any:
    """Computes one place of a recurrent layer."""
    states = list(state) if isinstance(state, tuple | list) else [state]
    bx, bh = biases or (None, None)
    with recorder:
        new = recurrent.cell(kind, F.linear(x, wx, bx), F.linear(states[0], wh, bh), states)
    return tuple(new) if kind == "lstm" else new[0]


def rnn(recorder: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Stands in for a fused recurrent module on padded sequences."""
    return _rnn(recorder, FUSED_RNNS[func], *args)


def _rnn(
    recorder: Tracker,
    kind: str,
    x: Tensor,
    state: Any,
    weights: list[Tensor],
    bias: bool,
    count: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """Computes the layers of a fused recurrent module one by one."""
    _refuse_dropout(recorder, weights, dropout if training and count > 1 else 0.0)
    states = list(state) if isinstance(state, tuple | list) else [state]
    if len(weights) != (4 if bias else 2) * count * (2 if bidirectional else 1):
        raise UnsupportedError(
            f"{recorder.names_in(weights)} belongs to an LSTM with proj_size. Use engine='loop'."
        )
    _start_states(recorder, states, recorder.place(x)._replace(axis=0))
    with recorder:
        return recurrent.layers(
            kind,
            x,
            states,
            weights,
            bias=bias,
            count=count,
            bidirectional=bidirectional,
            batch_first=batch_first,
        )


def _refuse_dropout(recorder: Tracker, weights: list[Tensor], dropout: float) -> None:
    if dropout:
        raise UnsupportedError(
            f"{recorder.names_in(weights)} belongs to a recurrent layer with dropout between its layers, "
            "whose masks cannot be replayed. Use single layers with nn.Dropout between them."
        )


def pack(recorder: Tracker, x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """Packs padded sequences, and notes which example each row belongs to."""
    place = recorder.place(x)
    order = place._replace(axis=0)
    axis = 0 if batch_first else 1
    own = recorder.mark(lengths)
    if place.axis != axis or place.outer * place.inner != 1 or (own is not None and own.place != order):
        recorder.refuse_mixing(f"pack_padded_sequence packs lengths of other examples ({user_line()})")
    packed, sizes = torch._VF._pack_padded_sequence(x, lengths, batch_first)
    owner = torch.arange(recorder.n) if place.rows is None else place.rows.owner
    rows = Rows(torch.cat([owner[:size] for size in sizes.tolist()]), recorder.n, chosen=True)
    recorder.packed[id(rows)] = rows, order, lengths
    recorder.set_mark(packed, Place(0, 1, 1, rows))
    recorder.set_mark(sizes, Mark(recorder.unit, None, PACKED_SIZES))
    return packed, sizes


def pad(
    recorder: Tracker, packed: Tensor, sizes: Tensor, batch_first: bool, value: float, total: int
) -> tuple[Tensor, Tensor]:
    """Pads packed sequences."""
    _, order, _ = _unpacked(recorder, packed)
    padded, found = torch._VF._pad_packed_sequence(packed, sizes, batch_first, value, total)
    recorder.set_mark(padded, order._replace(axis=0 if batch_first else 1))
    recorder.set_mark(found, order)
    return padded, found


def _unpacked(recorder: Tracker, packed: Tensor) -> tuple[Place, Place, Tensor]:
    """Returns the place of packed data, the order of its examples, and their lengths."""
    place = recorder.place(packed)
    known = recorder.packed.get(id(place.rows))
    if known is None or place != Place(0, 1, 1, place.rows):
        recorder.refuse_mixing(f"packed data was not packed in this step ({user_line()})")
    return place, known[1], known[2]


def _start_states(recorder: Tracker, states: list[Tensor], place: Place) -> None:
    """Marks first states that are constants and the same for each example."""
    for s in states:
        mark = None if recorder.is_tracked(s) else recorder.mark(s)
        constant = mark is None or mark.made or mark.alike
        if constant and not recorder.is_tracked(s) and equal_along(s, 1, place, recorder.n):
            recorder.set_mark(s, place._replace(axis=1))


def packed_rnn(
    recorder: Tracker,
    kind: str,
    packed: Tensor,
    sizes: Tensor,
    state: Any,
    weights: list[Tensor],
    bias: bool,
    count: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
) -> Any:
    """Stands in for a fused recurrent module on packed sequences: pads, writes out, packs again."""
    _refuse_dropout(recorder, weights, dropout if training and count > 1 else 0.0)
    place, order, lengths = _unpacked(recorder, packed)
    states = list(state) if isinstance(state, tuple | list) else [state]
    padded, _ = torch._VF._pad_packed_sequence(packed, sizes, False, 0.0, int(sizes.shape[0]))
    recorder.set_mark(padded, order._replace(axis=1))
    active = [(lengths > t).unsqueeze(1) for t in range(int(sizes.shape[0]))]
    for mask in active:
        recorder.set_mark(mask, order)
    _start_states(recorder, states, order)
    with recorder:
        out, *finals = recurrent.layers(
            kind,
            padded,
            states,
            weights,
            bias=bias,
            count=count,
            bidirectional=bidirectional,
            batch_first=False,
            active=active,
        )
    again, _ = torch._VF._pack_padded_sequence(out, lengths, False)
    recorder.set_mark(again, place)
    return (again, *finals)
