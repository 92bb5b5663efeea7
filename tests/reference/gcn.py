"""The DP-GCN of Daigavane et al. (2021) in NumPy, on a whole graph with its adjacency matrix.

Encoder, graph convolutions and decoder, with tanh. A convolution takes the mean over the node itself and all
nodes that send it messages, and adds the node's own state or, as in the published code, the mean.
"""

from collections.abc import Mapping

import numpy as np


def gcn(
    p: Mapping[str, np.ndarray], features: np.ndarray, adjacency: np.ndarray, hops: int, skip: str = "own"
) -> np.ndarray:
    """Logits of all nodes; `adjacency[u, v]` is 1 if v sends messages to u. `p` has the weights by name."""
    closed = adjacency + np.eye(len(adjacency))
    average = closed / closed.sum(1, keepdims=True)
    h = np.tanh(features @ p["encoder.weight"].T + p["encoder.bias"])
    for hop in range(hops):
        mean = average @ h
        new = np.tanh(mean @ p[f"layers.{hop}.weight"].T + p[f"layers.{hop}.bias"])
        h = new + (h if skip == "own" else mean)
    h = np.tanh(h @ p["decoder.0.weight"].T + p["decoder.0.bias"])
    return h @ p["decoder.2.weight"].T + p["decoder.2.bias"]
