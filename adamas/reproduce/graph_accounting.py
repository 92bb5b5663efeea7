r"""Node-level privacy as the papers state it (Daigavane et al., 2021): fixed batches, their unit of noise.

The noise multiplier :math:`\lambda` counts in units of :math:`2 N_r C`, where :math:`N_r = 1 + K + \dots +
K^r` is the number of terms that a node enters, K the largest degree and r the number of convolutions.
`adamas.accounting.terms` has the formulas, and `adamas.graphs.calibrate` the unit of `make_private`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from adamas import _validate
from adamas.accounting.terms import FIXED_SIZE, SampledTermsDpEvent
from adamas.graphs import calibrate


def renyi(
    orders: Sequence[float],
    *,
    noise_multiplier: float,
    nodes: int,
    batch_size: int,
    max_degree: int,
    hops: int = 1,
) -> np.ndarray:
    """Computes the Renyi divergence of one step for each order."""
    unit = calibrate.published_unit(max_degree, hops)
    event = SampledTermsDpEvent(nodes, batch_size, int(unit) // 2, unit * noise_multiplier, FIXED_SIZE)
    return event.divergences(orders)


def epsilon(*, noise_multiplier: float, max_degree: int, hops: int = 1, **run: Any) -> float:
    """Computes the epsilon of a number of steps for one node.

    Args:
        noise_multiplier: Lambda: the noise in units of 2 N_r C.
        max_degree: K.
        hops: r.
        run: Further arguments of `adamas.graphs.calibrate.epsilon`; the accountant is "rdp" unless given.

    Example:
        >>> from adamas.reproduce import graph_accounting
        >>> round(graph_accounting.epsilon(noise_multiplier=2.0, nodes=90941, batch_size=10000,
        ...                                max_degree=7, steps=668, delta=1 / 909410), 2)
        11.99
    """
    return calibrate.epsilon(**_converted(noise_multiplier, max_degree, hops, run))


def steps(*, noise_multiplier: float, max_degree: int, hops: int = 1, **run: Any) -> int:
    """Finds the largest number of steps whose epsilon is at most the target; see `epsilon`."""
    return calibrate.steps(**_converted(noise_multiplier, max_degree, hops, run))


def _converted(noise_multiplier: float, max_degree: int, hops: int, run: dict[str, Any]) -> dict[str, Any]:
    _validate.positive(noise_multiplier=noise_multiplier)
    unit = calibrate.published_unit(max_degree, hops)
    sizes = {"max_degree": max_degree, "hops": hops, "sampling": FIXED_SIZE}
    return {"accountant": "rdp"} | run | sizes | {"noise_multiplier": unit * noise_multiplier}
