"""Recurrent layers and cells."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.models_by_hand.parts import B, Build
from tests.support.through import Through


def recurrent(layer: Callable[..., nn.Module], length: int = 4, **options: Any) -> Build:
    """Puts a linear layer behind all outputs of a recurrent layer."""
    time_first = not options.get("batch_first", True)

    def forward(m: Any, x: Tensor) -> Tensor:
        if time_first:
            return m.o(m.r(x.transpose(0, 1))[0].transpose(0, 1))
        return m.o(m.r(x)[0])

    def build() -> tuple[nn.Module, Tensor]:
        width = (options.get("proj_size") or 8) * (2 if options.get("bidirectional") else 1)
        layers = {"r": layer(7, 8, **{"batch_first": True, **options}), "o": nn.Linear(width, 3)}
        return Through(forward, **layers), torch.randn(B, length, 7)

    return build


def cell_loop(layer: Callable[..., nn.Module], **options: Any) -> Build:
    """Runs a cell over time, and puts a linear layer behind its last state."""

    def forward(m: Any, x: Tensor) -> Tensor:
        state = None
        for t in range(x.shape[1]):
            state = m.r(x[:, t], state)
        return m.o(state[0] if isinstance(state, tuple) else state)

    return lambda: (
        Through(forward, r=layer(7, 8, **options), o=nn.Linear(8, 3)),
        torch.randn(B, 4, 7),
    )


CASES: dict[str, Build] = {
    "LSTM": recurrent(nn.LSTM),
    "LSTM, 2 layers, bidirectional": recurrent(nn.LSTM, num_layers=2, bidirectional=True),
    "LSTM, time-first, T = B": recurrent(nn.LSTM, B, batch_first=False),
    "LSTM without biases": recurrent(nn.LSTM, bias=False),
    "GRU": recurrent(nn.GRU),
    "GRU, 2 layers, bidirectional, T = B": recurrent(nn.GRU, B, num_layers=2, bidirectional=True),
    "RNN": recurrent(nn.RNN),
    "RNN relu": recurrent(nn.RNN, nonlinearity="relu"),
    "LSTMCell": cell_loop(nn.LSTMCell),
    "LSTMCell without biases": cell_loop(nn.LSTMCell, bias=False),
    "GRUCell": cell_loop(nn.GRUCell),
    "RNNCell": cell_loop(nn.RNNCell),
}
