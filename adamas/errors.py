"""Defines the error classes and the warning of the package.

Values out of range raise `ValueError`, objects of the wrong kind raise `TypeError`.
"""


class UnsupportedError(ValueError):
    """A model, loss, engine or data set for which the guarantee cannot be kept.

    It is well-formed, but would make the private gradient wrong, so it is refused.
    """


class BudgetError(RuntimeError):
    """A release that would exceed the privacy budget, so it is not made."""


class DistributedError(RuntimeError):
    """The ranks of a data-parallel run cannot go on together: one failed, ended, or differs."""


class SlowEngineWarning(UserWarning):
    """The fast engine cannot follow a model: a slower one computes the same, example by example."""
