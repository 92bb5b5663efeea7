"""DP-Adam, DP-AdamBC, DP-AdamW and DP-AdamW-BC in NumPy, line by line as the papers write them.

Adam: Kingma and Ba (2015), Algorithm 1. DP-AdamBC: Tang et al. (2024), Algorithm 1 and Proposition 3.
DP-AdamW and DP-AdamW-BC: Chooi et al. (2025), Algorithms 1 and 2.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

Floor = float | Callable[[int, np.ndarray], np.ndarray]


def adam(
    theta: np.ndarray,
    gradients: Sequence[np.ndarray],
    lr: Sequence[float],
    beta1: float = 0.9,
    beta2: float = 0.999,
    gamma: float = 1e-8,
    inside: bool = False,
    lam: float = 0.0,
) -> list[np.ndarray]:
    """Returns theta_1, ..., theta_T of DP-Adam, or of DP-AdamW with `lam`.

    `inside` puts gamma under the root.
    """
    theta = np.array(theta, dtype=np.float64)
    m, v = np.zeros_like(theta), np.zeros_like(theta)
    trajectory = []
    for t, (gtil, eta) in enumerate(zip(gradients, lr, strict=True), start=1):
        m = beta1 * m + (1 - beta1) * gtil
        v = beta2 * v + (1 - beta2) * gtil**2
        mhat = m / (1 - beta1**t)
        vhat = v / (1 - beta2**t)
        denominator = np.sqrt(vhat + gamma) if inside else np.sqrt(vhat) + gamma
        theta = theta - eta * (mhat / denominator + lam * theta)
        trajectory.append(theta)
    return trajectory


def adam_bc(
    theta: np.ndarray,
    gradients: Sequence[np.ndarray],
    lr: Sequence[float],
    phi: Sequence[np.ndarray | float],
    beta1: float = 0.9,
    beta2: float = 0.999,
    floor: Floor = 5e-8,
    lam: float = 0.0,
) -> list[np.ndarray]:
    """Returns theta_1, ..., theta_T of DP-AdamBC, or of DP-AdamW-BC with `lam`.

    `phi[t - 1]` is subtracted from vhat_t: the papers' constant Phi, or `averaged` variances.
    """
    theta = np.array(theta, dtype=np.float64)
    m, v = np.zeros_like(theta), np.zeros_like(theta)
    trajectory = []
    for t, (gtil, eta) in enumerate(zip(gradients, lr, strict=True), start=1):
        m = beta1 * m + (1 - beta1) * gtil
        v = beta2 * v + (1 - beta2) * gtil**2
        mhat = m / (1 - beta1**t)
        vhat = v / (1 - beta2**t)
        least = floor(t, phi[t - 1]) if callable(floor) else floor
        vcorr = np.maximum(vhat - phi[t - 1], least)
        theta = theta - eta * (mhat / np.sqrt(vcorr) + lam * theta)
        trajectory.append(theta)
    return trajectory


def averaged(variances: Sequence[np.ndarray | float], beta2: float) -> list[np.ndarray]:
    """Returns (1 - beta2)/(1 - beta2^t) sum_tau beta2^(t - tau) variance_tau, for t = 1, ..., T."""
    return [
        (1 - beta2)
        / (1 - beta2**t)
        * sum(beta2 ** (t - tau) * np.asarray(variances[tau - 1]) for tau in range(1, t + 1))
        for t in range(1, len(variances) + 1)
    ]


def proposition_3(t: int, beta2: float, alpha: float, a: float = 1.0, c: float = 2.0) -> float:
    """Returns xi with P(|vhat_t - E vhat_t| > xi) <= alpha. c is 2 in the proof and 4 in the statement."""
    f = (1 - beta2) / (1 - beta2**t)
    g = math.sqrt((1 - beta2 ** (2 * t)) / (1 - beta2**2))
    log = math.log(2 / alpha)
    nu, b = c * a * g, 4 * a
    delta_1 = math.sqrt(2 * log) * nu
    delta_2 = 2 * b * log
    return f * (delta_1 if delta_1 <= nu**2 / b else delta_2)
