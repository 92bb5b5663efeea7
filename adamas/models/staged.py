"""Models in two stages, of which only the second trains."""

from typing import Any

from torch import Tensor, nn


class Staged(nn.Module):
    """A frozen module, and a trained one on top of it: `trained(*frozen(x))`.

    What the frozen one makes of an example does not change during training, so that it can be computed once
    for all examples, and `trained` alone be trained on it. It depends on no other example: that keeps the
    guarantee for each example.

    Args:
        frozen: Returns a tuple of tensors, each with the examples as its first axis. Its parameters are
            frozen, and it stays in evaluation mode.
        trained: Takes these tensors.

    Example:
        >>> import torch
        >>> class Features(nn.Module):
        ...     def forward(self, x):
        ...         return (x.relu(),)
        >>> model = Staged(Features(), nn.Linear(3, 2))
        >>> x = torch.randn(4, 3)
        >>> cached = model.frozen(x)
        >>> torch.equal(model.trained(*cached), model(x))
        True
    """

    def __init__(self, frozen: nn.Module, trained: nn.Module) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False).eval()
        self.trained = trained

    def train(self, mode: bool = True) -> "Staged":
        """Switches the trained part; the frozen one stays in evaluation mode."""
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x: Tensor) -> Any:
        """The trained part's answer."""
        return self.trained(*self.frozen(x))
