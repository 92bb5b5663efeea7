"""Models in two stages, of which only the second is trained."""

from typing import Any

from torch import Tensor, nn


class Staged(nn.Module):
    """A frozen module and a trained one on top of it: `trained(*frozen(x))`.

    The frozen module's output does not change during training, so it can be computed once for all examples,
    and `trained` can be trained on it alone. The output of an example must not depend on other examples;
    otherwise the guarantee for each example is lost.

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
        """Switches the mode of the trained part; the frozen part stays in evaluation mode."""
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x: Tensor) -> Any:
        """Returns the output of the trained part."""
        return self.trained(*self.frozen(x))
