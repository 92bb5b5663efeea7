"""Bounds of the papers that a user can act on."""

import math

from adamas import _validate


def second_moment_deviation(step: int, beta2: float, alpha: float = 0.05) -> float:
    r"""How far noise alone moves Adam's second moment from its mean, as a multiple of that mean.

    Proposition 3 of DP-AdamBC (Tang et al., 2024) for a fixed trajectory. With noise of variance
    :math:`\Phi` in each gradient, with probability :math:`1 - \alpha` for one coordinate,
    :math:`|\hat v_t - E\hat v_t| \le \xi\,\Phi`:

    .. math::
        f &= \frac{1-\beta_2}{1-\beta_2^t}, \quad
        G = \sqrt{\frac{1-\beta_2^{2t}}{1-\beta_2^2}}, \quad L = \ln(2/\alpha), \quad \nu = 2 G \\
        \xi &= f \sqrt{2L}\,\nu \;\text{ if }\; \sqrt{2L}\,\nu \le \nu^2/4,
        \quad\text{else } 8 f L

    The constant 2 in :math:`\nu` is the one of the paper's proof, and the right one: a squared standard
    normal value minus 1 is sub-exponential with parameters (2, 4).

    Example:
        >>> round(second_moment_deviation(step=100_000, beta2=0.999), 4)
        0.1215
    """
    _validate.count(step=step)
    _validate.decay(beta2=beta2)
    _validate.probability(alpha=alpha)
    f = (1 - beta2) / (1 - beta2**step)
    nu = 2 * math.sqrt((1 - beta2 ** (2 * step)) / (1 - beta2**2))
    log = math.log(2 / alpha)
    deviation = math.sqrt(2 * log) * nu
    return f * (deviation if deviation <= nu**2 / 4 else 8 * log)
