"""DP-SGD and DP-SGDM in NumPy, line by line as the papers write them.

Abadi et al. (2016), Algorithm 1, from "Descent" on; momentum as in section 3 of Tang et al. (2024), with
the sign of the update that makes it a descent; decoupled weight decay as in Loshchilov and Hutter (2019).
"""

from collections.abc import Sequence

import numpy as np


def sgd(
    theta: np.ndarray,
    gradients: Sequence[np.ndarray],
    lr: Sequence[float],
    mu: float = 0.0,
    lam: float = 0.0,
) -> list[np.ndarray]:
    """Returns theta_1, ..., theta_T for private gradients gtil_1, ..., gtil_T and rates eta_1, ..., eta_T."""
    theta = np.array(theta, dtype=np.float64)
    b = np.zeros_like(theta)
    trajectory = []
    for gtil, eta in zip(gradients, lr, strict=True):
        b = mu * b + gtil
        theta = theta - eta * lam * theta - eta * b
        trajectory.append(theta)
    return trajectory
