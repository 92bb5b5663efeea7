r"""Node-level privacy of a graph network with one convolution (Daigavane et al., 2021).

A node enters its own loss term and those of its neighbours, at most :math:`K` of them. So one node changes up
to :math:`K + 1` of the :math:`N` terms. A step draws :math:`B` terms uniformly without replacement, clips
the gradient of each to norm :math:`C`, sums, and adds Gaussian noise of standard deviation
:math:`\sigma = \lambda \cdot 2 (K + 1) C`.

.. math::
    \rho &\sim \mathrm{Hypergeometric}(N, K + 1, B) \qquad (1) \\
    \mu(\rho) &= \frac{2 \rho C}{\sigma} = \frac{\rho}{\lambda (K + 1)} \qquad (2) \\
    \gamma(\alpha) &= \frac{1}{\alpha - 1} \log \mathrm{E}_\rho \exp\Bigl(\alpha (\alpha - 1)
    \frac{\mu(\rho)^2}{2}\Bigr) \qquad (3)

(1) is the number of changed terms in the batch. Each of them moves by at most :math:`2C`, so the sum moves by
:math:`\mu(\rho)` standard deviations at most (2), and two Gaussians that far apart have a Renyi divergence of
:math:`\alpha \mu^2 / 2`. The exponential of :math:`(\alpha - 1)` times the divergence is jointly convex, so
the mixture over batches is bounded by the mean (3). The gammas of the steps add up.

Assumptions:

- The neighbour has the same :math:`N` nodes; one node's features, label and edges are arbitrary in it. The
  number of nodes is public.
- Every node enters at most :math:`K` terms besides its own: the out-degree is bounded before training, by a
  procedure that one node cannot upset elsewhere.
- One graph convolution. With :math:`r` of them :math:`K + 1` becomes :math:`1 + K + \dots + K^r`.
- Each step draws the nodes of its batch again.

The noise multiplier :math:`\lambda` counts in units of :math:`2 (K + 1) C`. It is not that of DP-SGD, whose
unit is :math:`C`.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.rdp import compute_epsilon
from scipy.special import log_ndtr, logsumexp, ndtr
from scipy.stats import hypergeom

from adamas import _validate
from adamas.accounting.composition import RDP_ORDERS

_CELL = 1e-3  # width of the cells into which the privacy loss is rounded up, for PLD
_TAIL = 10.0  # standard deviations up to which the privacy loss has cells
_LARGEST_STEPS = 2**24


def term_probabilities(*, nodes: int, batch_size: int, max_degree: int) -> np.ndarray:
    """Computes the probabilities of 0, 1, ..., K + 1 changed terms in a batch, (1)."""
    _validate.count(nodes=nodes, batch_size=batch_size)
    _validate.whole(max_degree=max_degree)
    if not max(batch_size, max_degree + 1) <= nodes:
        raise ValueError(
            f"Expected batch_size={batch_size} and max_degree={max_degree} + 1 to be at most nodes={nodes}: "
            "a batch is drawn without replacement. Lower them."
        )
    return np.asarray(hypergeom(nodes, max_degree + 1, batch_size).pmf(np.arange(max_degree + 2)))


def renyi(
    orders: Sequence[float], *, noise_multiplier: float, nodes: int, batch_size: int, max_degree: int
) -> np.ndarray:
    """Computes the Renyi divergence of one step, gamma of (3), for each order."""
    shifts, probabilities = _shifts(noise_multiplier, nodes, batch_size, max_degree)
    alpha = np.asarray(orders, dtype=float)
    exponents = alpha[:, None] * (alpha[:, None] - 1) * shifts**2 / 2
    return np.asarray(logsumexp(exponents, b=probabilities, axis=1) / (alpha - 1))


def epsilon(
    *,
    noise_multiplier: float,
    nodes: int,
    batch_size: int,
    max_degree: int,
    steps: int,
    delta: float,
    accountant: str = "rdp",
) -> float:
    """Computes the epsilon of a number of steps for one node.

    Args:
        noise_multiplier: Lambda: the noise in units of 2 (K + 1) C.
        nodes: N, the training nodes.
        batch_size: B.
        max_degree: K.
        steps: The number of steps.
        delta: The delta of the answer.
        accountant: "rdp" is (3) with the orders of Opacus. "pld" composes the loss of an observer who
            also sees the number of changed terms: an upper bound too, and a smaller one.

    Example:
        >>> from adamas.reproduce import graph_accounting
        >>> round(graph_accounting.epsilon(noise_multiplier=2.0, nodes=90941, batch_size=10000,
        ...                                max_degree=7, steps=668, delta=1 / 909410), 2)
        11.99
    """
    _validate.count(steps=steps)
    _validate.probability(delta=delta)
    return _composed(noise_multiplier, nodes, batch_size, max_degree, delta, accountant)(steps)


def steps(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    nodes: int,
    batch_size: int,
    max_degree: int,
    accountant: str = "rdp",
) -> int:
    """Finds the largest number of steps whose epsilon is at most the target."""
    _validate.positive(epsilon=epsilon)
    _validate.probability(delta=delta)
    composed = _composed(noise_multiplier, nodes, batch_size, max_degree, delta, accountant)
    if composed(1) > epsilon:
        raise ValueError(
            f"Expected epsilon={epsilon!r} to pay for one step at least; with noise_multiplier="
            f"{noise_multiplier!r} it does not. Raise either of them."
        )
    low, high = 1, 2
    while composed(high) <= epsilon:
        low, high = high, 2 * high
        if high > _LARGEST_STEPS:
            raise ValueError(f"Expected fewer than {_LARGEST_STEPS} steps to exhaust epsilon={epsilon!r}.")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if composed(middle) <= epsilon else (low, middle)
    return low


def _shifts(
    noise_multiplier: float, nodes: int, batch_size: int, max_degree: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns mu of (2) for each number of changed terms, and the probabilities of the numbers."""
    _validate.positive(noise_multiplier=noise_multiplier)
    probabilities = term_probabilities(nodes=nodes, batch_size=batch_size, max_degree=max_degree)
    return np.arange(max_degree + 2) / (noise_multiplier * (max_degree + 1)), probabilities


def _composed(
    noise_multiplier: float, nodes: int, batch_size: int, max_degree: int, delta: float, accountant: str
) -> Callable[[int], float]:
    """Returns a function from steps to epsilon."""
    _validate.one_of(("rdp", "pld"), accountant=accountant)
    if accountant == "rdp":
        gamma = renyi(
            RDP_ORDERS,
            noise_multiplier=noise_multiplier,
            nodes=nodes,
            batch_size=batch_size,
            max_degree=max_degree,
        )
        gamma = np.maximum(gamma, 0.0)  # a rounding error below 0 would count as no loss at all
        return lambda count: float(compute_epsilon(RDP_ORDERS, gamma * count, delta)[0])
    loss = _loss(noise_multiplier, nodes, batch_size, max_degree)
    return lambda count: float(loss.self_compose(count).get_epsilon_for_delta(delta))


@lru_cache(maxsize=8)
def _loss(noise_multiplier: float, nodes: int, batch_size: int, max_degree: int) -> PrivacyLossDistribution:
    """Bounds the loss of one step to an observer of the number of changed terms, alike in both directions.

    Its delta at each epsilon is the mean of the deltas of Gaussians that are mu(rho) apart.
    """
    shifts, probabilities = _shifts(noise_multiplier, nodes, batch_size, max_degree)
    widest = shifts[-1]
    last = int(np.ceil((widest**2 / 2 + _TAIL * widest) / _CELL))
    cells = np.arange(-last, last + 1)
    values = cells * _CELL
    deltas = probabilities[0] * np.maximum(-np.expm1(values), 0.0)
    for mu, probability in zip(shifts[1:], probabilities[1:], strict=True):
        tail = np.exp(values + log_ndtr(-values / mu - mu / 2))
        deltas += probability * np.maximum(ndtr(mu / 2 - values / mu) - tail, 0.0)
    deltas = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    return PrivacyLossDistribution(pld_pmf.create_pmf_pessimistic_connect_dots(_CELL, cells, deltas))
