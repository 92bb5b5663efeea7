"""Scale-then-privatize Adam in NumPy, line by line: section 2 of Hudisteanu et al. (2025).

The paper's s_t multiplies the gradients: it is the clip norm divided by the scale of a geometry. The noise is
added to the sum, so the noise of the mean is divided by B.
"""

from collections.abc import Sequence

import numpy as np

from tests.reference.adam_family import proposition_3


def scale_then_privatize(
    theta: np.ndarray,
    examples: Sequence[np.ndarray],
    xi: Sequence[np.ndarray],
    lr: Sequence[float],
    sigma: float,
    batch_size: float,
    clip_norm: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    gamma: float = 1e-8,
    scale_eps: float = 1e-2,
    corrected: bool = False,
    floor: float | None = None,
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Returns (theta_t, gtil_t, the center 0, the scale C / s_t) for t = 1, ..., T.

    `examples[t - 1]` is (n_t, d), and n_t may be 0. `corrected` subtracts the averaged variance of the noise
    from vhat, down to `floor`: a number, or None for the bound of Proposition 3 of DP-AdamBC at 5%.
    """
    theta = np.array(theta, dtype=np.float64)
    d = theta.size
    m, v, s, noise_in_v = np.zeros(d), np.zeros(d), np.ones(d), np.zeros(d)
    steps = []
    for t, (g, noise, eta) in enumerate(zip(examples, xi, lr, strict=True), start=1):
        w = s * g
        norms = np.linalg.norm(w, axis=1, keepdims=True)
        wbar = (w / np.maximum(1, norms / clip_norm)).sum(axis=0)
        gtil = (wbar + sigma * clip_norm * noise) / batch_size / s
        m = beta1 * m + (1 - beta1) * gtil
        v = beta2 * v + (1 - beta2) * gtil**2
        noise_in_v = beta2 * noise_in_v + (1 - beta2) * (sigma * clip_norm / (batch_size * s)) ** 2
        mhat, vhat, phi = m / (1 - beta1**t), v / (1 - beta2**t), noise_in_v / (1 - beta2**t)
        if corrected:
            least = np.maximum(proposition_3(t, beta2, 0.05) * phi, 1e-16) if floor is None else floor
            root = np.sqrt(np.maximum(vhat - phi, least))
            theta = theta - eta * mhat / root
        else:
            root = np.sqrt(vhat)
            theta = theta - eta * mhat / (root + gamma)
        steps.append((theta, gtil, np.zeros(d), clip_norm / s))
        s = 1 / (root + scale_eps)
    return steps
