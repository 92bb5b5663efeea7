"""The graph convolutional network that the DP-AdamBC and DP-AdamW papers train on ogbn-arxiv.

References:
    Ameya Daigavane, Gagan Madan, Aditya Sinha, Abhradeep Guha Thakurta, Gaurav Aggarwal, Prateek Jain.
    "Node-Level Differentially Private Graph Neural Networks." 2021. arXiv:2111.15521.

    Qiaoyue Tang, Frederick Shpilevskiy, Mathias Lécuyer. "DP-AdamBC: Your DP-Adam Is Actually DP-SGD (Unless
    You Apply Bias Correction)." AAAI 2024. arXiv:2312.14334.

    Jay Chooi, Kevin Cong, Russell Li, Lillian Sun. "DP-AdamW: Investigating Decoupled Weight Decay and Bias
    Correction in Private Deep Learning." 2025. arXiv:2511.07843.
"""

from torch import Tensor, nn

from adamas import _validate
from adamas.models import _trees


class GCN(nn.Module):
    """An encoder, message-passing layers and a decoder; `gcn` builds it.

    Args:
        features: Features of a node.
        classes: Number of classes.
        hidden: Size of a state.
        hops: Number of message-passing layers.
        skip: What each layer adds to its output: "own" state of the node, or the "mean" that it takes.
    """

    def __init__(self, features: int, classes: int, hidden: int, hops: int, skip: str = "own") -> None:
        super().__init__()
        self.skip = skip
        self.encoder = nn.Linear(features, hidden)
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(hops))
        self.decoder = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, classes))

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns the logits (B, classes) of the nodes in row 0.

        Args:
            features: Rows of each node's computation tree, (B, n, F).
            mask: Which rows are nodes, (B, n).
        """
        mask, width = _trees.checked("gcn", features, mask, len(self.layers))
        states = self.encoder(features).tanh()
        for layer in self.layers:
            means = _trees.means(states, mask, width, own=True)
            inner = means.shape[1]
            states = layer(means).tanh() + (states[:, :inner] if self.skip == "own" else means)
            mask = mask[:, :inner]
        logits: Tensor = self.decoder(states[:, 0])
        return logits


def gcn(
    input_shape: tuple[int, ...], classes: int, *, hidden: int = 255, hops: int = 1, skip: str = "own"
) -> nn.Module:
    """Builds the DP-GCN of Daigavane et al. in the sizes of the DP-AdamW paper: 173,695 parameters.

    An encoder maps the features of each node to a state. Each layer takes the mean over the states of a node
    and of its neighbours that are present, applies a linear map and tanh, and adds the node's own state. A
    decoder with one hidden layer maps the node's last state to logits. The model is called as
    `model(features, mask)`: rows of the node's computation tree, and which of them are nodes.

    **Differs from the paper**: the published code adds the mean in place of the node's own state, which is
    `skip="mean"`. DP-AdamBC has `hidden=100`.

    Args:
        input_shape: `(features,)` of one node.
        classes: Number of classes.
        hidden: Size of a state.
        hops: Number of layers, 1 or 2: how far away the nodes are that a node hears from.
        skip: What each layer adds to its output: the node's "own" state, or the "mean" that it takes.

    Example:
        >>> import torch
        >>> model = gcn((128,), 40)
        >>> sum(p.numel() for p in model.parameters())
        173695
        >>> features = torch.randn(5, 1 + 7, 128)  # five nodes with up to seven neighbours
        >>> model(features, torch.ones(5, 8, dtype=torch.bool)).shape
        torch.Size([5, 40])
    """
    _validate.one_of(_trees.HOPS, hops=hops)
    _validate.one_of(["own", "mean"], skip=skip)
    return GCN(_trees.inputs("gcn", input_shape, classes, hidden), classes, hidden, hops, skip)
