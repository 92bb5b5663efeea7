"""The allowed error of certified norms, and a way to disable the certificate."""

from torch import Tensor

from adamas.engines.bookkeeping.certificate import Squares

LOW = 1e-6  # how far a norm may be too low, relatively, and how far beyond 1 an example may move a sum


def no_certificate(self: Squares, size: int, harmless: float = 0.0) -> tuple[Tensor, None]:
    """Replaces `Squares.certified`: returns unchanged squares, and marks no example to compute again."""
    return self.values.clamp(min=0), None
