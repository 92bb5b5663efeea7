"""A private run: made by `make_private`, iterated to train, saved and loaded again."""

from adamas.run.checkpoint import load
from adamas.run.loop import PrivateRun, Step
from adamas.run.make import make_private

__all__ = ["PrivateRun", "Step", "load", "make_private"]
