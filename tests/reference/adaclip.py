"""AdaClip (Pichapati et al., 2019) in NumPy, line by line: SGD with coordinate-wise center and scale.

The paper states one query. For a mean of B examples, the variance of the noise has the factor 1/B^2.
"""

from collections.abc import Sequence

import numpy as np


def adaclip(
    theta: np.ndarray,
    examples: Sequence[np.ndarray],
    xi: Sequence[np.ndarray],
    lr: Sequence[float],
    sigma: float,
    batch_size: float,
    beta1: float = 0.9,
    beta2: float = 0.9,
    h1: float = 1e-9,
    h2: float = 1e-6,
    b0: float | None = None,
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Returns (theta_t, gtil_t, the center m_t, the scale b_t) for t = 1, ..., T.

    `examples[t - 1]` is (n_t, d), and n_t may be 0. s is a standard deviation. The variance starts at the
    geometric mean of its bounds. `b0` replaces the first scale only.
    """
    theta = np.array(theta, dtype=np.float64)
    d = theta.size
    m = np.zeros(d)
    s2 = np.full(d, np.sqrt(h1 * h2))
    steps = []
    for g, noise, eta in zip(examples, xi, lr, strict=True):
        s = np.sqrt(s2)
        b = np.sqrt(s) * np.sqrt(s.sum()) if steps or b0 is None else np.full(d, b0)
        w = (g - m) / b
        wbar = w / np.maximum(1, np.linalg.norm(w, axis=1, keepdims=True))
        gtil = b * (wbar.sum(axis=0) + sigma * noise) / batch_size + m
        theta = theta - eta * gtil
        steps.append((theta, gtil, m, b))
        u = np.clip((gtil - m) ** 2 - b**2 * sigma**2 / batch_size**2, h1, h2)  # about the OLD mean
        m = beta1 * m + (1 - beta1) * gtil
        s2 = beta2 * s2 + (1 - beta2) * u
    return steps
