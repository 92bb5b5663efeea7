"""One turn of a training loop: one logical batch, loaded only when its gradient is released."""

from collections.abc import Callable

from torch import nn

from adamas.integrations.opacus.program import Leaf, Node


class Turn:
    """The batch of one turn, which may be released once.

    Args:
        release: Releases the private gradient of a loss, given as a node of shape (n,).
        reduction: "mean" or "sum", the reduction that the run was made for.
        model: The model that is trained on the batch.
    """

    def __init__(self, release: Callable[[Leaf | Node], None], reduction: str, model: nn.Module) -> None:
        self.reduction, self.model = reduction, model
        self._release = release
        self._released = self._over = False

    def backward(self, loss: Leaf | Node) -> None:
        """Releases the private gradient of the batch of this turn."""
        if self._over:
            raise RuntimeError(
                "Expected backward() on the loss of the current batch of the data loader, got one of an "
                "earlier batch, whose turn is over. Call it in the turn of the loop that computed the loss."
            )
        if self._released:
            raise RuntimeError(
                "Expected one backward() for each batch, got a second one: the batch's gradient was released "
                "and charged. Add up the losses, and call backward() on their sum."
            )
        self._release(loss)
        self._released = True

    def end(self) -> None:
        """Ends the turn: another batch follows."""
        self._over = True
