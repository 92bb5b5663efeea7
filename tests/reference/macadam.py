"""DP-MacAdam and DP-MacAdam-BC (Tasnim et al., 2026) in NumPy, with the line numbers of Algorithm 1.

Three places have two forms. Line 20 divides by kappa_t: the printed factor is derived as if every u_k were
centered at the last mean, and `exact_kappa` is the factor for u_k centered at its own mean. Line 21 subtracts
the variance of the noise: the printed line takes the noise of this step, and "tracked" takes the share that
the noise of each step has in s_t. The BC update subtracts Phi: the printed one is that of noise with scale 1,
and "exact" averages the variances of the releases.
"""

from collections.abc import Sequence

import numpy as np

from tests.reference.adam_family import proposition_3


def paper_kappa(t: int, beta: float) -> float:
    """Returns the factor of line 20 as printed."""
    return 2 * (beta - beta**t) / (1 + beta)


def exact_e(k: int, beta: float) -> float:
    """Returns E[u_k] / V for independent gtil of variance V, where u_k = (gtil_k - mhat_k)^2."""
    weights = [(1 - beta) * beta ** (k - i) / (1 - beta**k) for i in range(1, k + 1)]  # equation (10)
    return (1 - weights[-1]) ** 2 + sum(c**2 for c in weights[:-1])


def exact_kappa(t: int, beta: float) -> float:
    """Returns E[s_t] / V: the exponential average of e_1, ..., e_t, starting from 0."""
    return sum((1 - beta) * beta ** (t - k) * exact_e(k, beta) for k in range(1, t + 1))


def macadam(
    theta: np.ndarray,
    examples: Sequence[np.ndarray],
    xi: Sequence[np.ndarray],
    lr: Sequence[float],
    sigma: float,
    batch_size: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    gamma: float = 1e-8,
    h1: float = 1e-9,
    h2: float = 1e-6,
    b0: float | None = None,
    kappa: str = "exact",
    noise_correction: str = "tracked",
    corrected: bool = False,
    phi: str = "exact",
    floor: float | None = None,
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Returns (theta_t, gtil_t, the center mhat_{t-1}, the scale b_{t-1}) for t = 1, ..., T.

    `examples[t - 1]` is (n_t, d), and n_t may be 0. `corrected` uses the update of DP-MacAdam-BC, equation
    (8), with `phi`. Its floor is a number, or None for the bound of Proposition 3 of DP-AdamBC at 5%, as a
    multiple of the averaged variance of the noise.
    """
    theta = np.array(theta, dtype=np.float64)
    d = theta.size
    m, mhat, v, s, noise_in_s, noise_in_v = np.zeros((6, d))  # 3
    b = np.full(d, 1 / d if b0 is None else b0)  # 3
    steps = []
    for t, (g, noise, eta) in enumerate(zip(examples, xi, lr, strict=True), start=1):
        w = (g - mhat) / b  # 8
        wbar = w / np.maximum(1, np.linalg.norm(w, axis=1, keepdims=True))  # 9
        z = sigma / batch_size * noise  # 11
        wtil = wbar.sum(axis=0) / batch_size + z  # 12
        gtil = b * wtil + mhat  # 13
        center, scale, variance = mhat, b, b**2 * sigma**2 / batch_size**2
        m = beta1 * m + (1 - beta1) * gtil  # 14
        v = beta2 * v + (1 - beta2) * gtil**2  # 15
        mhat, vhat = m / (1 - beta1**t), v / (1 - beta2**t)  # 16
        noise_in_v = beta2 * noise_in_v + (1 - beta2) * variance
        if corrected:
            averaged = noise_in_v / (1 - beta2**t)
            subtracted = averaged if phi == "exact" else sigma**2 / batch_size**2
            least = np.maximum(proposition_3(t, beta2, 0.05) * subtracted, 1e-16) if floor is None else floor
            theta = theta - eta * mhat / np.sqrt(np.maximum(vhat - subtracted, least))  # (8)
        else:
            theta = theta - eta * mhat / (np.sqrt(vhat) + gamma)  # 17
        steps.append((theta, gtil, center, scale))
        u = (gtil - mhat) * (gtil - mhat)  # 18, about the NEW mean
        s = beta1 * s + (1 - beta1) * u  # 19
        noise_in_s = beta1 * noise_in_s + (1 - beta1) * exact_e(t, beta1) * variance
        if t == 1:  # lines 18 to 21 give 0/0; take the lower bound
            shat = np.full(d, h1)
        else:
            factor = exact_kappa(t, beta1) if kappa == "exact" else paper_kappa(t, beta1)  # 20
            raw = (s - noise_in_s) / factor if noise_correction == "tracked" else s / factor - variance
            shat = np.minimum(np.maximum(raw, h1), h2)  # 21
        b = shat ** (1 / 4) * np.sum(shat ** (1 / 2)) ** (1 / 2)  # 22
    return steps
