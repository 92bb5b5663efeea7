"""A geometry as adaptive clipping needs it, at random."""

import torch

import adamas


def random_geometry(params):
    """Returns a center and a scale per coordinate, the same at each call."""
    random = torch.Generator().manual_seed(0)
    return adamas.Geometry(
        {p: 1e-3 * torch.randn(p.shape, generator=random) for p in params},
        {p: 0.5 + torch.rand(p.shape, generator=random) for p in params},
    )
