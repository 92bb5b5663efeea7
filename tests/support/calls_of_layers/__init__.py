"""Registers cases of products and layers."""

from tests.support.calls_of_layers import classes, images, normalizations, products, sequences

__all__ = ["classes", "images", "normalizations", "products", "sequences"]
