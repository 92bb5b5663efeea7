"""AdaDPS (Li et al., 2022) in NumPy, line by line: SGD on gradients scaled by public or side information."""

from collections.abc import Mapping, Sequence

import numpy as np


def adadps(
    theta: np.ndarray,
    examples: Sequence[np.ndarray],
    xi: Sequence[np.ndarray],
    lr: Sequence[float],
    sigma: float,
    batch_size: float,
    clip_norm: float,
    side_information: np.ndarray | None = None,
    public: Mapping[int, np.ndarray] | None = None,
    beta: float = 0.9,
    eps: float = 1e-5,
    mu: float = 0.0,
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Returns (theta_t, A gtil_t, the center 0, the scale C A_t) for t = 1, ..., T.

    `examples[t - 1]` is (n_t, d), and n_t may be 0. A is `side_information`, or follows the mean public
    gradients: `public[t]` is seen just before step t. The paper's gtil stays scaled by 1/A, while A gtil is
    in the units of a gradient. `mu` is heavy-ball momentum on the paper's gtil.
    """
    theta = np.array(theta, dtype=np.float64)
    d = theta.size
    a = np.ones(d) if side_information is None else side_information
    e, buffer = np.zeros(d), np.zeros(d)
    steps = []
    for t, (g, noise, eta) in enumerate(zip(examples, xi, lr, strict=True), start=1):
        if public is not None and t in public:
            e = beta * e + (1 - beta) * public[t] ** 2
            a = np.sqrt(e + eps)
        w = g / a
        norms = np.linalg.norm(w, axis=1, keepdims=True)
        gtil = ((w / np.maximum(1, norms / clip_norm)).sum(axis=0) + sigma * clip_norm * noise) / batch_size
        buffer = mu * buffer + gtil
        theta = theta - eta * buffer
        steps.append((theta, a * gtil, np.zeros(d), clip_norm * a))
    return steps
