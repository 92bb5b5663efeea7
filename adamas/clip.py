r"""Clips gradients to the unit ball of a geometry. There is no other clipping."""

from collections.abc import Mapping

import torch
from torch import Tensor

from adamas.engines import Engine, Stacked
from adamas.geometry import Geometry

# The reciprocal of a larger norm is not a normal float32 number, and would be rounded by too much.
_LARGEST_NORM = 8e37


def clip_weights(norms: Tensor) -> Tensor:
    r"""Computes the factor :math:`1/\max(1, \|u\|)` of each example from its whitened norm.

    Guarantee:
        | norm | weight |
        |---|---|
        | 0 | 1 |
        | up to 1 | 1 |
        | above 1, finite | 1/norm |
        | infinite, NaN, or above 8e37 | 0: the example is dropped |

        `privatize` divides the weights by the expected batch size B, and then drops examples whose weight
        over B is not a normal float32 number: norms above 8e37 / B.

    Example:
        >>> clip_weights(torch.tensor([0.0, 0.5, 4.0, float("nan")]))
        tensor([1.0000, 1.0000, 0.2500, 0.0000])
    """
    weights = norms.clamp(min=1.0).reciprocal()  # clamp keeps NaN
    return torch.where(norms < _LARGEST_NORM, weights, torch.zeros_like(weights))  # False for NaN


def clipped_sum(gradients: Engine | Mapping[Tensor, Tensor], geometry: Geometry) -> dict[Tensor, Tensor]:
    r"""Sums the examples' gradients, whitened and clipped to the unit ball.

    .. math:: \sum_i \frac{u_i}{\max(1, \|u_i\|)}, \qquad u_i = (g_i - c)/s.

    Args:
        gradients: An engine, or the per-example gradients themselves, `(n, *p.shape)` for each
            parameter `p`.
        geometry: Center and scale; the norm runs over all parameters together.

    Returns:
        The sum for each parameter, in whitened coordinates.

    Guarantee:
        Adding or removing one example moves the result by at most 1 in the L2 norm over all
        parameters. Examples with a non-finite gradient contribute nothing. No example gives zeros.

    Example:
        >>> p = torch.nn.Parameter(torch.zeros(2))
        >>> g = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
        >>> clipped_sum({p: g}, Geometry.ball([p], radius=1.0))[p]
        tensor([0.9000, 1.2000])
    """
    if isinstance(gradients, Mapping):
        if gradients.keys() != geometry.scale.keys():
            raise ValueError("Expected gradients and geometry to have the same parameters.")
        engine: Engine = Stacked(gradients)
    else:
        engine = gradients
    weights = clip_weights(engine.norms(geometry))
    total = float(weights.sum())
    result = {}
    for p, weighted in engine.weighted_sum(weights).items():
        c = geometry.center_of(p)
        shifted = weighted if c is None else weighted - total * c
        result[p] = shifted / geometry.scale[p]
    return result
