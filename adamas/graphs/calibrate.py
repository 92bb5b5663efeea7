"""Converts a budget for nodes into a noise multiplier or a number of steps, and back, without a graph.

The noise multiplier is that of `make_private`: standard deviation over clipping norm. The papers count in
units of 2 N_r clipping norms; `published_unit` is that number.
"""

import dp_accounting

from adamas import _validate
from adamas.accounting import calibrate
from adamas.accounting.budget import Budget
from adamas.accounting.composition import composed_epsilon
from adamas.accounting.terms import POISSON, SampledTermsDpEvent
from adamas.graphs.terms import RELATIONS, terms_reached

_RELATION = RELATIONS["remove"]
_LARGEST_STEPS = 2**24


def published_unit(max_degree: int, hops: int = 1) -> float:
    """Returns 2 N_r, the papers' unit of noise in clipping norms.

    Example:
        >>> published_unit(7), published_unit(7, hops=2)
        (16.0, 114.0)
    """
    return 2.0 * terms_reached(max_degree, hops)


def epsilon(
    *,
    noise_multiplier: float,
    nodes: int,
    batch_size: int,
    max_degree: int,
    steps: int,
    delta: float,
    hops: int = 1,
    sampling: str = POISSON,
    accountant: str = "pld",
) -> float:
    """Computes the epsilon of one node after a number of steps.

    Args:
        noise_multiplier: Standard deviation of the noise, in clipping norms.
        nodes: Number of training nodes.
        batch_size: Number of terms in a batch, or its expectation.
        max_degree: K, how many nodes receive the messages of a node.
        steps: Number of steps.
        delta: The delta of the answer.
        hops: 1 or 2.
        sampling: "poisson" or "fixed-size".
        accountant: "pld" or "rdp".

    Example:
        >>> from adamas.graphs import calibrate
        >>> run = {"nodes": 90941, "batch_size": 10000, "max_degree": 7, "steps": 668, "delta": 1 / 909410}
        >>> z = 2.0 * calibrate.published_unit(7)
        >>> round(calibrate.epsilon(noise_multiplier=z, accountant="rdp", **run), 2)
        11.99
        >>> round(calibrate.epsilon(noise_multiplier=z, **run), 2)
        7.74
    """
    _validate.noise_multiplier(noise_multiplier=noise_multiplier)
    _validate.count(steps=steps)
    event = _event(noise_multiplier, nodes, batch_size, max_degree, hops, sampling)
    return composed_epsilon([(event, steps)], delta, accountant, _RELATION)


def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    nodes: int,
    batch_size: int,
    max_degree: int,
    steps: int,
    hops: int = 1,
    sampling: str = POISSON,
    accountant: str = "pld",
) -> float:
    """Finds the smallest noise multiplier whose epsilon is at most the target; see `epsilon`."""
    _validate.count(steps=steps)
    return calibrate.noise_multiplier_for(
        lambda z: dp_accounting.SelfComposedDpEvent(
            _event(z, nodes, batch_size, max_degree, hops, sampling), steps
        ),
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
        relation=_RELATION,
    )


def steps(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    nodes: int,
    batch_size: int,
    max_degree: int,
    hops: int = 1,
    sampling: str = POISSON,
    accountant: str = "pld",
) -> int:
    """Finds the largest number of steps whose epsilon is at most the target; see `epsilon`."""
    _validate.positive(epsilon=epsilon, noise_multiplier=noise_multiplier)
    _validate.noise_multiplier(noise_multiplier=noise_multiplier)
    event = _event(noise_multiplier, nodes, batch_size, max_degree, hops, sampling)
    found = Budget(epsilon, delta, accountant, _RELATION).most(event, _LARGEST_STEPS)
    if found == 0:
        raise ValueError(
            f"Expected epsilon={epsilon!r} to pay for one step at least; with noise_multiplier="
            f"{noise_multiplier!r} it does not. Raise either of them."
        )
    if found == _LARGEST_STEPS:
        raise ValueError(f"Expected fewer than {_LARGEST_STEPS} steps to exhaust epsilon={epsilon!r}.")
    return found


def _event(
    z: float, nodes: int, batch_size: int, max_degree: int, hops: int, sampling: str
) -> dp_accounting.DpEvent:
    _validate.count(nodes=nodes, batch_size=batch_size)
    terms = terms_reached(max_degree, hops)
    if not max(batch_size, terms) <= nodes:
        raise ValueError(
            f"Expected batch_size={batch_size} and the {terms} terms of max_degree={max_degree} to be at "
            f"most nodes={nodes}. Lower them."
        )
    if z == 0:
        return dp_accounting.NonPrivateDpEvent()
    return SampledTermsDpEvent(nodes, batch_size, terms, z, sampling)
