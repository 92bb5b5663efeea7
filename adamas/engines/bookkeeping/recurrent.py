"""Writes LSTM, GRU and plain recurrent layers as linear maps and element-wise functions.

Fused calls hide the use of each weight at each place. Written out, the input projection is one linear map
over all places, and the uses of a recurrent weight merge along time, with their cross terms.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def lstm_cell(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the next states from projections of input and hidden state, and the cell state."""
    i, f, g, o = (x + h).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_cell(x: Tensor, h: Tensor, state: Tensor) -> Tensor:
    """Computes the next state from projections of input and hidden state, and the hidden state."""
    xr, xz, xn = x.chunk(3, -1)
    hr, hz, hn = h.chunk(3, -1)
    z = (xz + hz).sigmoid()
    n = (xn + (xr + hr).sigmoid() * hn).tanh()
    return n + z * (state - n)


def cell(kind: str, x: Tensor, h: Tensor, state: list[Tensor]) -> list[Tensor]:
    """Computes the next states of a recurrent layer from its projections and states."""
    if kind == "lstm":
        return list(lstm_cell(x, h, state[1]))
    if kind == "gru":
        return [gru_cell(x, h, state[0])]
    return [(x + h).relu() if kind == "rnn_relu" else (x + h).tanh()]


def layers(
    kind: str,
    x: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    *,
    bias: bool,
    count: int,
    bidirectional: bool,
    batch_first: bool,
    active: Sequence[Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Computes a recurrent module: outputs, then the last states stacked over layers and directions.

    Args:
        kind: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        x: Inputs.
        states: First states, each `(layers * directions, n, hidden)`.
        weights: A flat list, in torch's order.
        bias: Whether there are biases among them.
        count: Number of layers.
        bidirectional: Whether each layer has a second direction.
        batch_first: Whether the example axis is the first one.
        active: For each place, which examples reach that far, `(n, 1)`; the others keep their state.
    """
    time = 1 if batch_first else 0
    per_direction = 4 if bias else 2
    finals: list[list[Tensor]] = []
    for _ in range(count):
        outputs = []
        for direction in range(2 if bidirectional else 1):
            k = len(finals)
            own = weights[k * per_direction : (k + 1) * per_direction]
            bx, bh = (own[2], own[3]) if bias else (None, None)
            places = F.linear(x, own[0], bx).unbind(time)
            state = [s[k] for s in states]
            seen = []
            steps = list(enumerate(places))
            for t, place in reversed(steps) if direction else steps:
                new = cell(kind, place, F.linear(state[0], own[1], bh), state)
                if active is not None:
                    new = [torch.where(active[t], a, b) for a, b in zip(new, state, strict=True)]
                state = new
                seen.append(state[0])
            outputs.append(torch.stack(seen[::-1] if direction else seen, time))
            finals.append(state)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
    return (x, *(torch.stack(parts) for parts in zip(*finals, strict=True)))
