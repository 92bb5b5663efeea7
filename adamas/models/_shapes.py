"""Checks of what a model is asked to take."""

import math

from adamas import _validate


def flat(input_shape: tuple[int, ...], classes: int) -> int:
    """The numbers in one example."""
    _whole_shape(input_shape)
    _validate.count(classes=classes)
    return math.prod(input_shape)


def image(model: str, input_shape: tuple[int, ...], classes: int, smallest: int) -> tuple[int, int, int]:
    """Channels, height and width of the images that a model is asked to take.

    Raises:
        ValueError: Unless the shape is one of images that are large enough.
    """
    _whole_shape(input_shape)
    _validate.count(classes=classes)
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise ValueError(
            f"Expected input_shape={tuple(input_shape)!r} to be (channels, height, width) with at least "
            f"{smallest}x{smallest} pixels, the smallest images that {model!r} can take. "
            "Take another model, such as 'mlp', which takes every shape."
        )
    channels, height, width = input_shape
    return channels, height, width


def divides(groups: int, *channels: int) -> None:
    """Raises unless GroupNorm can make so many groups of each number of channels."""
    _validate.count(groups=groups)
    if any(c % groups for c in channels):
        widths = ", ".join(map(str, sorted(set(channels))))
        raise ValueError(f"Expected groups={groups} to divide the model's numbers of channels, {widths}.")


def _whole_shape(input_shape: tuple[int, ...]) -> None:
    if not input_shape:
        raise ValueError("Expected input_shape to have an axis, got (): the shape of one example.")
    for axis, size in enumerate(input_shape):
        _validate.count(**{f"input_shape[{axis}]": size})
