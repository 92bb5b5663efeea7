"""GraphSAGE with the mean aggregator.

References:
    William L. Hamilton, Rex Ying, Jure Leskovec. "Inductive Representation Learning on Large Graphs." NeurIPS
    2017. arXiv:1706.02216.
"""

from torch import Tensor, nn

from adamas import _validate
from adamas.models import _trees


class SageLayer(nn.Module):
    r"""One layer: :math:`h'_u = \mathrm{relu}(W_{self} h_u + b + W_{neigh}\,\mathrm{mean}_{v \in N(u)} h_v)`.

    Args:
        before: Size of a state before the layer.
        after: Size of a state after it.
    """

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.own = nn.Linear(before, after)
        self.neighbours = nn.Linear(before, after, bias=False)

    def forward(self, states: Tensor, means: Tensor) -> Tensor:
        """Returns the new states, from the old ones and the means over their neighbours."""
        new: Tensor = self.own(states) + self.neighbours(means)
        return new.relu()


class GraphSAGE(nn.Module):
    """Layers of GraphSAGE and a linear classifier; `graphsage` builds it.

    Args:
        features: Features of a node.
        classes: Number of classes.
        hidden: Size of a state.
        hops: Number of layers.
    """

    def __init__(self, features: int, classes: int, hidden: int, hops: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SageLayer(hidden if hop else features, hidden) for hop in range(hops))
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns the logits (B, classes) of the nodes in row 0.

        Args:
            features: Rows of each node's computation tree, (B, n, F).
            mask: Which rows are nodes, (B, n).
        """
        mask, width = _trees.checked("graphsage", features, mask, len(self.layers))
        states = features
        for layer in self.layers:
            means = _trees.means(states, mask, width, own=False)
            inner = means.shape[1]
            states = layer(states[:, :inner], means)
            mask = mask[:, :inner]
        logits: Tensor = self.classifier(states[:, 0])
        return logits


def graphsage(input_shape: tuple[int, ...], classes: int, *, hidden: int = 256, hops: int = 1) -> nn.Module:
    """Builds GraphSAGE-mean: each layer joins a node's own state with the mean over its neighbours.

    A node without neighbours has the mean 0. The model is called as `model(features, mask)`: rows of the
    node's computation tree, and which of them are nodes.

    **Differs from the paper**: states are not scaled to norm 1 after a layer, and layers have a bias, both
    as in PyTorch Geometric's `SAGEConv`.

    Args:
        input_shape: `(features,)` of one node.
        classes: Number of classes.
        hidden: Size of a state.
        hops: Number of layers, 1 or 2: how far away the nodes are that a node hears from.

    Example:
        >>> import torch
        >>> model = graphsage((128,), 40, hops=2)
        >>> features = torch.randn(5, 1 + 3 + 9, 128)  # five nodes; each node has up to three neighbours
        >>> model(features, torch.ones(5, 13, dtype=torch.bool)).shape
        torch.Size([5, 40])
    """
    _validate.one_of(_trees.HOPS, hops=hops)
    return GraphSAGE(_trees.inputs("graphsage", input_shape, classes, hidden), classes, hidden, hops)
