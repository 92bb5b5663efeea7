"""Models by name, for the command line: `MODELS[name](input_shape, classes)`."""

from collections.abc import Callable

from torch import nn

from adamas.models.mlp import linear, mlp

MODELS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {"mlp": mlp, "linear": linear}
"""Models by name."""

__all__ = ["MODELS", "linear", "mlp"]
