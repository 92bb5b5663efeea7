"""DP-RMSProp in NumPy: Tieleman and Hinton (2012) on private gradients, without bias correction."""

from collections.abc import Sequence

import numpy as np


def rmsprop(
    theta: np.ndarray,
    gradients: Sequence[np.ndarray],
    lr: Sequence[float],
    beta: float = 0.9,
    gamma: float = 1e-8,
    mu: float = 0.0,
) -> list[np.ndarray]:
    """Returns theta_1, ..., theta_T. `mu` is heavy-ball momentum on the normalised gradient, as in torch."""
    theta = np.array(theta, dtype=np.float64)
    v, buffer = np.zeros_like(theta), np.zeros_like(theta)
    trajectory = []
    for gtil, eta in zip(gradients, lr, strict=True):
        v = beta * v + (1 - beta) * gtil**2
        buffer = mu * buffer + gtil / (np.sqrt(v) + gamma)
        theta = theta - eta * buffer
        trajectory.append(theta)
    return trajectory
