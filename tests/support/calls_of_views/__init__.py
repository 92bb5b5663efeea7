"""Registers cases of functions that move values, make tensors or differentiate."""

from tests.support.calls_of_views import gradients, indices, new_tensors, shapes

__all__ = ["gradients", "indices", "new_tensors", "shapes"]
