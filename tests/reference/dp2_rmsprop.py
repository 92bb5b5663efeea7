"""DP2-RMSProp (Li et al., 2023) in NumPy, line by line: delayed preconditioning in two phases of s steps."""

from collections.abc import Sequence

import numpy as np


def dp2_rmsprop(
    theta: np.ndarray,
    examples: Sequence[np.ndarray],
    xi: Sequence[np.ndarray],
    lr: Sequence[float],
    sigma: float,
    batch_size: float,
    clip_norm: float,
    lr2: float = 1e-3,
    period: int = 100,
    clip_ratio: float = 1.0,
    rho: float = 0.9,
    eps: float = 1e-5,
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Returns (theta_t, the release, the center 0, the scale) for t = 1, ..., T.

    `examples[t - 1]` is (n_t, d), and n_t may be 0. In the second phase the paper's gtil stays scaled, while
    the release is in the units of a gradient. `lr` has the first phase's rate of each step, and `lr2` changes
    in proportion.
    """
    theta = np.array(theta, dtype=np.float64)
    d = theta.size
    a, total, n = np.zeros(d), np.zeros(d), 0
    steps = []
    for t, (g, noise, eta) in enumerate(zip(examples, xi, lr, strict=True)):
        first_phase = t % (2 * period) < period
        precondition = np.ones(d) if first_phase else np.sqrt(a) + eps
        clip = clip_norm if first_phase else clip_ratio * clip_norm
        w = g / precondition
        norms = np.linalg.norm(w, axis=1, keepdims=True)
        gtil = ((w / np.maximum(1, norms / clip)).sum(axis=0) + sigma * clip * noise) / batch_size
        if first_phase:
            total, n = total + gtil, n + 1
            theta = theta - eta * gtil
            if t % (2 * period) == period - 1:  # the last step of the phase, after its update
                a = rho * a + (1 - rho) * (total / n) ** 2
                total, n = np.zeros(d), 0
        else:
            theta = theta - lr2 * eta / lr[0] * gtil
        steps.append((theta, precondition * gtil, np.zeros(d), precondition * clip))
    return steps
