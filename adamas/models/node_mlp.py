"""The network of `gcn` without its graph: what nodes alone can tell.

A private graph network must be better than this to be worth its noise, since an example that is one node
needs less of it.
"""

from torch import Tensor, nn

from adamas import _validate
from adamas.models import _trees
from adamas.models.gcn import GCN


class NodeMLP(GCN):
    """The modules of `GCN`, applied to the node alone; `node_mlp` builds it."""

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns the logits (B, classes) of nodes.

        Args:
            features: Features of the nodes, (B, F), or rows of their computation trees, (B, n, F), of which
                the model reads row 0.
            mask: Ignored: row 0 is always a node.
        """
        if features.dim() not in (2, 3):
            raise ValueError(
                f"Expected features of shape {tuple(features.shape)} to be (examples, features) or "
                "(examples, rows, features) for 'node-mlp'."
            )
        state = self.encoder(features[:, 0] if features.dim() == 3 else features).tanh()
        for layer in self.layers:
            state = layer(state).tanh() + state
        logits: Tensor = self.decoder(state)
        return logits


def node_mlp(input_shape: tuple[int, ...], classes: int, *, hidden: int = 255, layers: int = 1) -> nn.Module:
    """Builds the MLP to compare `gcn` with: the same layers and parameters, but each node hears itself only.

    It equals `gcn` on nodes without neighbours. It takes `(features, mask)` as graph models do, and also the
    plain features of nodes, so that it can train on `GraphData.train`, where an example is one node.

    Args:
        input_shape: `(features,)` of one node.
        classes: Number of classes.
        hidden: Size of a state.
        layers: Layers between encoder and decoder, as many as the `hops` of the `gcn` to compare with. With 0
            it is an MLP with two hidden layers.

    Example:
        >>> import torch
        >>> model = node_mlp((128,), 40)
        >>> sum(p.numel() for p in model.parameters())
        173695
        >>> trees = torch.randn(5, 8, 128)
        >>> torch.equal(model(trees, None), model(trees[:, 0]))
        True
    """
    _validate.whole(layers=layers)
    return NodeMLP(_trees.inputs("node-mlp", input_shape, classes, hidden), classes, hidden, layers)
