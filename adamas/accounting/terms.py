r"""Privacy of a record that takes part in a sum through several terms, such as a node of a graph.

A release sums the clipped gradients of a batch of terms, each of norm 1 at most, and adds Gaussian noise of
standard deviation :math:`z`. Changing the record changes at most :math:`M` of the :math:`N` terms, the
same ones in all releases on one batch. :math:`\rho` of them are in the batch:

.. math::
    \rho &\sim \mathrm{Hypergeometric}(N, M, B) \text{ for batches of } B \text{ terms, or }
    \mathrm{Binomial}(M, B/N) \text{ for Poisson sampling} \qquad (1)

**Direct bound.** A changed term moves by 2 at most, so given the batch the sum moves by :math:`2\rho/z`
standard deviations. Divergences are jointly convex, so whoever also sees :math:`\rho` learns no less:

.. math::
    \delta(\epsilon) &\le \mathrm{E}_\rho\, \delta_{\mathrm{Gauss}}(\epsilon;\, 2\rho/z)           \qquad (2)
    \\ \gamma(\alpha)   &\le \frac{1}{\alpha-1} \log \mathrm{E}_\rho
                          \exp\bigl(2 \alpha(\alpha-1) \rho^2/z^2\bigr)                            \qquad (3)

(3) is Daigavane et al. (2021), and (2) is the same argument for privacy loss distributions.

**Bound by way of no terms**, for Poisson sampling. Let :math:`R` be the same training in which the :math:`M`
terms are 0. Which of them are in a batch is then independent of the other terms in it. So a release of either
training, compared with that of :math:`R`, is a mixture of Gaussians around sums of :math:`\rho` vectors of
norm 1 at most, compared with one Gaussian. Its likelihood ratio is a weighted sum of log-normal variables;
both divergences are expectations of convex functions of it, which are largest if all vectors are parallel and
of full length: the mixture of Gaussians at :math:`\rho` (Choquette-Choo et al., 2024). If all releases
together are :math:`(\epsilon', \delta')`-private in this comparison, both ways, the way over :math:`R` costs

.. math:: \epsilon = 2 \epsilon', \qquad \delta = (1 + e^{\epsilon'}) \delta'                      \qquad (4)

(2) forgets that the batch is secret, (4) does not, and is far smaller where batches are small. Both hold, so
the smaller one counts. Batches of fixed size have no such bound: their other terms tell :math:`\rho`.

References:
    Ameya Daigavane, Gagan Madan, Aditya Sinha, Abhradeep Guha Thakurta, Gaurav Aggarwal, Prateek Jain.
    "Node-Level Differentially Private Graph Neural Networks." 2021. arXiv:2111.15521. Christopher A.
    Choquette-Choo, Arun Ganesh, Thomas Steinke, Abhradeep Thakurta. "Privacy Amplification for Matrix
    Mechanisms." ICLR 2024. arXiv:2310.15526.
"""

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import dp_accounting
import numpy as np
from scipy.special import logsumexp

from adamas import _validate

FIXED_SIZE, POISSON = "fixed-size", "poisson"
"""How a batch of terms is drawn."""

MOST_TERMS = 4096
"""The largest number of terms that a record may change: noise that hides more leaves nothing to learn."""


@dataclass(frozen=True)
class SampledTermsDpEvent(dp_accounting.DpEvent):  # type: ignore[misc]
    """A Gaussian release on a batch of terms, of which one record changes several.

    Attributes:
        dataset_size: N, the number of terms.
        batch_size: B, the number of terms in a batch, or its expectation.
        terms: M, the number of terms that a record changes at most.
        noise_multiplier: z, the standard deviation of the noise, in units of the clipping norm of a term.
        sampling: `FIXED_SIZE` or `POISSON`.

    Example:
        >>> SampledTermsDpEvent(1000, 100, 8, 32.0, "poisson").shifts()[:3]
        array([0.    , 0.0625, 0.125 ])
    """

    dataset_size: int
    batch_size: int
    terms: int
    noise_multiplier: float
    sampling: str

    def __post_init__(self) -> None:
        _validate.count(dataset_size=self.dataset_size, batch_size=self.batch_size, terms=self.terms)
        _validate.positive(noise_multiplier=self.noise_multiplier)
        for name in ("dataset_size", "batch_size", "terms"):  # products of NumPy's numbers overflow
            object.__setattr__(self, name, int(getattr(self, name)))
        _validate.one_of((FIXED_SIZE, POISSON), sampling=self.sampling)
        if self.terms > MOST_TERMS:
            raise ValueError(f"Expected terms={self.terms} <= {MOST_TERMS}.")
        if max(self.batch_size, self.terms) > self.dataset_size:
            raise ValueError(
                f"Expected batch_size={self.batch_size} and terms={self.terms} to be at most "
                f"dataset_size={self.dataset_size}."
            )

    def probabilities(self) -> np.ndarray:
        """Computes the probabilities of 0, 1, ..., M changed terms in a batch, (1)."""
        return _probabilities(self.dataset_size, self.batch_size, self.terms, self.sampling)

    def shifts(self) -> np.ndarray:
        """Computes how far 0, 1, ..., M changed terms move a sum at most, in standard deviations."""
        return 2 * np.arange(self.terms + 1) / self.noise_multiplier

    def divergences(self, orders: Sequence[float]) -> np.ndarray:
        """Computes the Renyi divergence of (3) for each order."""
        alpha = np.asarray(orders, dtype=float)[:, None]
        exponents = alpha * (alpha - 1) * self.shifts() ** 2 / 2
        return np.asarray(logsumexp(exponents, b=self.probabilities(), axis=1) / (alpha[:, 0] - 1))

    def without_terms(self) -> dp_accounting.DpEvent | None:
        """Returns the comparison with a training in which the changed terms are 0; None for fixed sizes."""
        if self.sampling != POISSON:
            return None
        return dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
            self.noise_multiplier,
            tuple(map(float, range(self.terms + 1))),
            tuple(self.probabilities().tolist()),
        )


@lru_cache(maxsize=64)
def _probabilities(size: int, batch: int, terms: int, sampling: str) -> np.ndarray:
    """Computes (1) in whole numbers, so that each probability is rounded once."""
    step = 0 if sampling == POISSON else 1  # without replacement, each draw leaves one less
    total = math.prod(size - step * i for i in range(terms))
    outside = [max(0, size - batch - step * i) for i in range(terms)]
    products = [1, *itertools.accumulate(outside, operator.mul)]  # of draws that are not changed
    inside, found = 1, np.empty(terms + 1)
    for changed in range(terms + 1):
        found[changed] = math.comb(terms, changed) * inside * products[terms - changed] / total
        inside *= max(0, batch - step * changed)
    found.flags.writeable = False
    return found


def by_way_of_none(
    half: Callable[[float], float], delta: float, *, start: float | None = None, limit: float = math.inf
) -> tuple[float, float]:
    """Computes an epsilon by (4).

    Args:
        half: Computes epsilon' at a delta'.
        delta: The delta of the answer.
        start: Where to look for delta'; None for delta/2.
        limit: An epsilon above this one need not be found.

    Returns:
        Epsilon, infinite if it is above `limit`, and delta'.
    """
    tried: list[
        tuple[float, float]
    ] = []  # logarithms of delta', and by how much more than it would be allowed
    log_share = math.log(delta / 2 if start is None else start)
    while log_share >= math.log(_validate.LEAST_DELTA):
        found = half(math.exp(log_share))
        if not 2 * found <= limit:  # a smaller delta' has a larger epsilon'
            break
        room = math.log(delta) - float(np.logaddexp(0.0, found)) - log_share
        if room >= 0:  # (4) holds for any delta' that has room; the search only looks for a large one
            return 2 * found, math.exp(log_share)
        tried.append((log_share, room))
        log_share += room
        if len(tried) > 1:  # the secant through the last two
            (x, f), (y, g) = tried[-2:]
            if f < g:
                log_share = min(y, y - g * (y - x) / (g - f))
        log_share -= 1e-4
    return math.inf, 0.0
