"""Bounds and factors from the papers, for choosing floors, learning rates and corrections.

References:
    Qiaoyue Tang, Frederick Shpilevskiy, Mathias Lécuyer. "DP-AdamBC: Your DP-Adam Is Actually DP-SGD (Unless
    You Apply Bias Correction)." AAAI 2024. arXiv:2312.14334.

    Naima Tasnim, Lalitha Sankar, Oliver Kosut. "DP-MacAdam: Differentially Private Mechanism with Adaptive
    Clipping and Adaptive Momentum." 2026. arXiv:2606.05435.
"""

import functools
import math

from torch import Tensor

from adamas import _validate
from adamas.geometry import Value

LEAST_FLOOR = 1e-16
"""The automatic floor without noise: the square of Adam's eps = 1e-8, which is outside the root."""

# Proposition 3 of DP-AdamBC: nu / Phi of one squared noise value.
_PROPOSITION_3 = {"proof": 2.0, "statement": 4.0}

# Less than the last digit of a float near 1.
_NEGLIGIBLE = 1e-17


# --- DP-AdamBC: the second moment under noise ------------------------------------------------------------


def second_moment_deviation(step: int, beta2: float, alpha: float = 0.05) -> float:
    r"""Bounds how far noise alone moves Adam's second moment from its mean, as a multiple of that mean.

    Proposition 3 of DP-AdamBC (Tang et al., 2024) for a fixed trajectory. With noise of variance
    :math:`\Phi` in each gradient, with probability :math:`1 - \alpha` for one coordinate,
    :math:`|\hat v_t - E\hat v_t| \le \xi\,\Phi`:

    .. math::
        f &= \frac{1-\beta_2}{1-\beta_2^t}, \quad
        G = \sqrt{\frac{1-\beta_2^{2t}}{1-\beta_2^2}}, \quad L = \ln(2/\alpha), \quad \nu = 2 G \\
        \xi &= f \sqrt{2L}\,\nu \;\text{ if }\; \sqrt{2L}\,\nu \le \nu^2/4,
        \quad\text{else } 8 f L

    The constant 2 in :math:`\nu` is that of the paper's proof, and is correct: a squared standard normal
    value minus 1 is sub-exponential with parameters (2, 4).

    Example:
        >>> round(second_moment_deviation(step=100_000, beta2=0.999), 4)
        0.1215
    """
    return _deviation(step, beta2, alpha, nu=_PROPOSITION_3["proof"], b=4.0)


def prop3_bound(
    step: int,
    *,
    noise_multiplier: float,
    clip_norm: float,
    batch_size: float,
    beta2: float = 0.999,
    alpha: float = 0.05,
    constant: str = "proof",
) -> float:
    r"""Bounds how far noise moves a coordinate of :math:`\hat v` on a fixed trajectory (Proposition 3).

    .. math::
        P(|\hat v_t - E\hat v_t| \ge \xi) \le \alpha, \qquad
        \nu = c\,\Phi\,G, \quad b = 4\Phi, \quad \Phi = (\sigma C / B)^2

    with :math:`\xi` as in `second_moment_deviation`, where :math:`\nu^2/b` and :math:`2bL` replace
    :math:`\nu^2/4` and :math:`8L`.

    Args:
        step: Number of steps, t.
        noise_multiplier: sigma. Without noise the bound is 0.
        clip_norm: C.
        batch_size: B, the divisor of the sum.
        beta2: Decay of the second moment.
        alpha: Probability with which a coordinate may exceed the bound.
        constant: "proof" uses c = 2, which is valid and tighter; "statement" uses c = 4, as the paper's
            Table 3 does.

    Example:
        >>> setting = {"noise_multiplier": 0.4, "clip_norm": 0.1, "batch_size": 256}
        >>> f"{prop3_bound(10_000, **setting):.3e}"
        '2.967e-09'
        >>> f"{prop3_bound(10_000, **setting, constant='statement'):.3e}"
        '5.933e-09'
    """
    _validate.one_of(_PROPOSITION_3, constant=constant)
    phi = _noise_variance(noise_multiplier, clip_norm, batch_size)
    return _deviation(step, beta2, alpha, nu=_PROPOSITION_3[constant] * phi, b=4 * phi)


def prop4_bound(
    step: int,
    *,
    noise_multiplier: float,
    clip_norm: float,
    batch_size: float,
    beta2: float = 0.999,
    alpha: float = 0.05,
) -> float:
    r"""Bounds the same for parameters that depend on the noise (Proposition 4 of DP-AdamBC).

    The gradients then depend on the noise of earlier steps, and their product with the noise adds to
    :math:`\nu`:

    .. math:: \nu = 2 G\,(\Phi + \sigma C^2 / B), \qquad b = 4\Phi, \qquad \Phi = (\sigma C / B)^2

    It exceeds Proposition 3 by a factor of about :math:`B/\sigma`, so it is usually far above :math:`\Phi`
    and does not help to choose a floor.

    Args:
        step: Number of steps, t.
        noise_multiplier: sigma. Without noise the bound is 0.
        clip_norm: C, which also bounds a coordinate of the mean gradient.
        batch_size: B, the divisor of the sum.
        beta2: Decay of the second moment.
        alpha: Probability with which a coordinate may exceed the bound.

    Example:
        >>> f"{prop4_bound(10_000, noise_multiplier=0.4, clip_norm=0.1, batch_size=256):.3e}"
        '1.902e-06'
    """
    phi = _noise_variance(noise_multiplier, clip_norm, batch_size)
    product = noise_multiplier * clip_norm**2 / batch_size
    return _deviation(step, beta2, alpha, nu=2 * (phi + product), b=4 * phi)


def automatic_floor(step: int, noise_variance: Value, beta2: float = 0.999, alpha: float = 0.05) -> Value:
    r"""Returns the floor :math:`\gamma'` that the bias-corrected rules use by default.

    .. math:: \gamma'_t = \max(\xi_t\,\hat\phi_t,\; 10^{-16})

    with :math:`\xi_t` of `second_moment_deviation`. The remainder of :math:`\hat v` after subtracting the
    noise variance :math:`\hat\phi` counts as gradient only where noise alone exceeds it with probability at
    most :math:`\alpha`.

    Args:
        step: Number of steps, t.
        noise_variance: Variance of the noise in the mean gradient, one number or one per coordinate.
        beta2: Decay of the second moment.
        alpha: Upper bound on the probability that noise alone exceeds the floor.

    Returns:
        A number, or a tensor if `noise_variance` is one.

    Example:
        >>> f"{automatic_floor(1, noise_variance=4e-8):.3e}, {automatic_floor(10**6, 4e-8):.3e}"
        '1.180e-06, 4.860e-09'
    """
    deviation = second_moment_deviation(step, beta2, alpha)
    if not isinstance(noise_variance, Tensor):
        _validate.non_negative(noise_variance=noise_variance)
        return max(deviation * noise_variance, LEAST_FLOOR)
    if noise_variance.numel():
        least, most = (float(value) for value in noise_variance.aminmax())
        if not (least >= 0 and most < math.inf):
            raise ValueError(f"Expected noise_variance from {least} to {most} to be >= 0 and finite.")
    return (deviation * noise_variance).clamp(min=LEAST_FLOOR)


def equivalent_sgdm_lr(
    step: int,
    *,
    lr: float,
    noise_multiplier: float,
    clip_norm: float,
    batch_size: float,
    beta1: float = 0.9,
) -> float:
    r"""Returns the learning rate at which DP-SGD with momentum makes the same steps as DP-Adam.

    Where noise dominates, :math:`\hat v \approx \Phi` for all coordinates, and Adam no longer has a step
    size per coordinate (equation (3) of DP-AdamBC):

    .. math::
        \eta_t^{\mathrm{SGDM}} = \eta\,\frac{1-\beta_1}{(1-\beta_1^t)\sqrt\Phi},
        \qquad \sqrt\Phi = \sigma C / B

    with momentum :math:`\beta_1` and no dampening. If a run of DP-Adam and a run of DP-SGD with this
    schedule agree, DP-Adam is not adaptive there.

    Args:
        step: Number of steps, t.
        lr: Learning rate of DP-Adam, eta.
        noise_multiplier: sigma.
        clip_norm: C.
        batch_size: B, the divisor of the sum.
        beta1: Decay of DP-Adam's first moment, and the momentum of DP-SGD.

    Example:
        >>> setting = {"lr": 1e-3, "noise_multiplier": 1.0, "clip_norm": 1.0, "batch_size": 2048}
        >>> [round(equivalent_sgdm_lr(t, **setting), 4) for t in (1, 10, 100)]
        [2.048, 0.3144, 0.2048]
    """
    _validate.count(step=step)
    _validate.non_negative(lr=lr)
    _validate.positive(noise_multiplier=noise_multiplier)
    _validate.decay(beta1=beta1)
    root = math.sqrt(_noise_variance(noise_multiplier, clip_norm, batch_size))
    return lr * (1 - beta1) / ((1 - beta1**step) * root)


# --- DP-MacAdam: a variance from values around a moving mean ---------------------------------------------


def macadam_excess(step: int, beta: float) -> float:
    r"""Returns the mean of DP-MacAdam's :math:`u_t = (\tilde g_t - \hat m_t)^2` in units of the variance.

    For independent :math:`\tilde g_1, ..., \tilde g_t` of equal mean and variance :math:`V`, and their
    bias-corrected average :math:`\hat m_t` with decay :math:`\beta`:

    .. math:: E[u_t] = e_t V, \qquad e_t = \frac{2\beta(\beta-\beta^t)}{(1+\beta)(1-\beta^t)}

    It is below 1, since :math:`\hat m_t` follows :math:`\tilde g_t`, and 0 at the first step, where the
    two are equal.

    Args:
        step: Number of steps, t.
        beta: Decay of the mean.

    Example:
        >>> [round(macadam_excess(t, beta=0.9), 4) for t in (1, 2, 100)]
        [0.0, 0.4488, 0.8526]
    """
    _validate.count(step=step)
    _validate.decay(beta=beta)
    return _excess(step, beta)


def macadam_kappa(step: int, beta: float, kind: str = "exact") -> float:
    r"""Returns the divisor :math:`\kappa_t` that makes DP-MacAdam's average :math:`s_t` unbiased.

    .. math::
        \text{exact:}\quad & \kappa^*_t = \beta\kappa^*_{t-1} + (1-\beta)\,e_t, \quad \kappa^*_0 = 0
        \\
        \text{paper:}\quad & \kappa_t = 2(\beta-\beta^t)/(1+\beta)

    :math:`E[s_t] = \kappa^*_t V`, with :math:`e_t` of `macadam_excess`. The paper's derivation replaces the
    running means by the last one, :math:`\hat m_t`, and its factor is too large: :math:`s_t/\kappa_t` is
    about half the variance in the first steps, and :math:`\beta` times the variance in the limit. Both are 0
    at the first step, where :math:`s_1 = 0` carries no information.

    Args:
        step: Number of steps, t.
        beta: Decay of the mean and of the variance.
        kind: "exact" or "paper".

    Example:
        >>> [round(macadam_kappa(t, beta=0.9), 4) for t in (2, 10, 1000)]
        [0.0449, 0.4454, 0.8526]
        >>> [round(macadam_kappa(t, beta=0.9, kind="paper"), 4) for t in (2, 10, 1000)]
        [0.0947, 0.5803, 0.9474]
    """
    _validate.count(step=step)
    _validate.decay(beta=beta)
    _validate.one_of(("exact", "paper"), kind=kind)
    if kind == "paper":
        return 2 * (beta - beta**step) / (1 + beta)
    return _exact_kappa(step, beta)


@functools.lru_cache
def _exact_kappa(step: int, beta: float) -> float:
    if (1 + step) * beta**step < _NEGLIGIBLE:
        return 2 * beta**2 / (1 + beta)  # the limit
    kappa = 0.0
    for t in range(1, step + 1):
        kappa = beta * kappa + (1 - beta) * _excess(t, beta)
    return kappa


def _excess(step: int, beta: float) -> float:
    return 2 * beta * (beta - beta**step) / ((1 + beta) * (1 - beta**step))


def _deviation(step: int, beta2: float, alpha: float, nu: float, b: float) -> float:
    """Returns xi if one squared value is sub-exponential with parameters (nu, b)."""
    _validate.count(step=step)
    _validate.decay(beta2=beta2)
    _validate.probability(alpha=alpha)
    f = (1 - beta2) / (1 - beta2**step)
    nu = nu * math.sqrt((1 - beta2 ** (2 * step)) / (1 - beta2**2))
    log = math.log(2 / alpha)
    root = math.sqrt(2 * log)
    # root * nu <= nu^2 / b, without the division.
    return f * (root * nu if root * b <= nu else 2 * b * log)


def _noise_variance(noise_multiplier: float, clip_norm: float, batch_size: float) -> float:
    """Returns Phi after checking the arguments."""
    _validate.non_negative(noise_multiplier=noise_multiplier)
    _validate.positive(clip_norm=clip_norm, batch_size=batch_size)
    return (noise_multiplier * clip_norm / batch_size) ** 2
