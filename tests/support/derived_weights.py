"""A weight computed from a parameter: standardised rows, as in networks without batch normalisation.

The fast engine has a closed form for the norms of such a parameter. Tests of derived weights and of certified
norms use it.
"""

import torch
from torch import Tensor


def axes(w: Tensor) -> tuple[int, ...]:
    """Returns the axes within a row of a weight: all except the first."""
    return tuple(range(1, w.dim()))


def over_root(w: Tensor) -> Tensor:
    """Standardises each row, with a small number under the root."""
    var, mean = torch.var_mean(w, dim=axes(w), keepdim=True, unbiased=False)
    return (w - mean) * torch.rsqrt(var + 1e-5)
