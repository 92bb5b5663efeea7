"""Gathers neighbourhoods as batch-first tensors.

A neighbourhood is a tree: row 0 is the node, and the rows 1 + i W to (i + 1) W are the nodes that send
messages to row i. W is the width. The tree has 1 + W + ... + W^hops rows, and ends `hops` messages away from
the node. Rows without a node are 0. A node that is reached on several ways has several rows.
"""

import torch
from torch import Tensor

ABSENT = -1
"""Stands for no node in a tree."""


class Trees:
    """The trees of all nodes along given edges. Only the edges are stored.

    Args:
        edges: Edges, sorted by target; of each target the first `width` count.
        nodes: Number of nodes.
        width: W.
        hops: Depth of the trees.
    """

    def __init__(self, edges: Tensor, nodes: int, width: int, hops: int) -> None:
        self.width, self.hops = width, hops
        degrees = torch.bincount(edges[1], minlength=nodes)
        self._starts = torch.cumsum(degrees, 0) - degrees
        self._degrees = degrees.clamp(max=width)
        self._senders = edges[0].contiguous()

    def rows(self) -> int:
        """Returns the number of rows of a tree."""
        return sum(self.width**hop for hop in range(self.hops + 1))

    def nodes_of(self, roots: Tensor) -> Tensor:
        """Returns the nodes of the trees of some roots, (B, rows), with `ABSENT` where there is none."""
        level = roots[:, None]
        levels = [level]
        for _ in range(self.hops):
            level = self._neighbors(level).flatten(1)
            levels.append(level)
        return torch.cat(levels, 1)

    def _neighbors(self, nodes: Tensor) -> Tensor:
        """Returns who sends to each node, with one more axis of length `width`."""
        places = torch.arange(self.width)
        known = nodes.clamp(min=0)
        present = (places < self._degrees[known][..., None]) & (nodes != ABSENT)[..., None]
        if len(self._senders) == 0:
            return torch.full(present.shape, ABSENT)
        found = self._senders[(self._starts[known][..., None] + places).clamp(max=len(self._senders) - 1)]
        return torch.where(present, found, ABSENT)


def gathered(features: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the features of the nodes of trees, 0 where there is none, and which rows are nodes."""
    mask = nodes != ABSENT
    rows = features[nodes.clamp(min=0).flatten()].view(*nodes.shape, features.shape[1])
    return rows.masked_fill_(~mask[..., None], 0.0), mask
