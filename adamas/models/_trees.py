"""Computation trees of nodes: rows in breadth-first order, and means over a row's children.

Row 0 is the node itself, and the children of row i are rows 1 + i W to W + i W, its neighbours: W is the
width of the tree. A tree with `hops` levels below row 0 has 1 + W + ... + W^hops rows.
"""

import torch
from torch import Tensor

from adamas import _validate

HOPS = (1, 2)
"""How many levels of neighbours a tree may have."""


def inputs(model: str, input_shape: tuple[int, ...], classes: int, hidden: int) -> int:
    """Returns the number of features of a node, and checks the numbers that a model is built for."""
    _validate.count(classes=classes, hidden=hidden)
    if len(input_shape) != 1:
        raise ValueError(
            f"Expected input_shape={tuple(input_shape)!r} to be (features,), the features of one node, which "
            f"{model!r} takes. Choose another model, such as 'mlp', which takes every shape."
        )
    _validate.count(**{"input_shape[0]": input_shape[0]})
    return input_shape[0]


def checked(model: str, features: Tensor, mask: Tensor | None, hops: int) -> tuple[Tensor, int]:
    """Returns the mask of a batch of trees, and their width.

    Args:
        model: Name of the model.
        features: Features of the rows, (B, n, F).
        mask: Which rows are nodes, (B, n).
        hops: Levels of neighbours.

    Raises:
        ValueError: If the tensors are no trees with this number of hops.
    """
    if mask is None or features.dim() != 3 or mask.shape != features.shape[:2]:
        found = "no mask" if mask is None else f"mask of shape {tuple(mask.shape)}"
        raise ValueError(
            f"Expected features (examples, rows, features) and mask (examples, rows) for {model!r}, got "
            f"features of shape {tuple(features.shape)} and {found}. Train it on terms of nodes with their "
            "neighbours, or choose 'node-mlp', which also takes the plain features of nodes."
        )
    rows = features.shape[1]
    width = 1
    while _rows(width, hops) < rows:
        width += 1
    if _rows(width, hops) != rows:
        sizes = "1 + W" if hops == 1 else "1 + W + W*W"
        raise ValueError(
            f"Expected features of shape {tuple(features.shape)} to have {sizes} rows, W >= 1 neighbours of "
            f"each node, for {model!r} with hops={hops}, got {rows} rows. Give the terms and the model the "
            "same hops."
        )
    return mask, width


def means(states: Tensor, mask: Tensor, width: int, *, own: bool) -> Tensor:
    """Returns the mean state of each inner row's children, (B, (n - 1) / W, H); 0 if it has none.

    Args:
        states: One vector for each row, (B, n, H).
        mask: Which rows are nodes, (B, n).
        width: Children of a row, W.
        own: Whether the row itself takes part in its mean.
    """
    row = torch.arange(states.shape[1], device=states.device)
    inner = row[: (states.shape[1] - 1) // width].unsqueeze(1)
    member = (row - 1).div(width, rounding_mode="floor") == inner
    if own:
        member = member | (row == inner)
    weights = (member & mask.bool().unsqueeze(1)).to(states.dtype)  # (B, inner rows, n)
    return (weights / weights.sum(2, keepdim=True).clamp(min=1)) @ states


def _rows(width: int, hops: int) -> int:
    return sum(width**level for level in range(hops + 1))
