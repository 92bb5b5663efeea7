"""Checks of the shapes that a model is built for."""

import math

from adamas import _validate


def flat(input_shape: tuple[int, ...], classes: int) -> int:
    """Returns how many numbers one example has."""
    _whole_shape(input_shape)
    _validate.count(classes=classes)
    return math.prod(input_shape)


def image(model: str, input_shape: tuple[int, ...], classes: int, smallest: int) -> tuple[int, int, int]:
    """Returns channels, height and width of the images that a model is built for.

    Raises:
        ValueError: If the shape is not that of images, or the images are too small.
    """
    _whole_shape(input_shape)
    _validate.count(classes=classes)
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise ValueError(
            f"Expected input_shape={tuple(input_shape)!r} to be (channels, height, width) with at least "
            f"{smallest}x{smallest} pixels, the smallest images that {model!r} can take. "
            "Choose another model, such as 'mlp', which takes every shape."
        )
    channels, height, width = input_shape
    return channels, height, width


def divides(groups: int, *channels: int) -> None:
    """Raises unless `groups` divides each number of channels, as GroupNorm needs."""
    _validate.count(groups=groups)
    if any(c % groups for c in channels):
        widths = ", ".join(map(str, sorted(set(channels))))
        raise ValueError(f"Expected groups={groups} to divide the model's numbers of channels, {widths}.")


def _whole_shape(input_shape: tuple[int, ...]) -> None:
    if not input_shape:
        raise ValueError("Expected input_shape to have an axis, got (): the shape of one example.")
    for axis, size in enumerate(input_shape):
        _validate.count(**{f"input_shape[{axis}]": size})
