"""The error classes of our own."""


class UnsupportedError(ValueError):
    """A model, loss, engine or data set for which the guarantee cannot be kept.

    Values out of range raise `ValueError`, objects of the wrong kind raise `TypeError`; this class is
    for what is well-formed but would make the private gradient wrong, so that it is refused.
    """


class DistributedError(RuntimeError):
    """The ranks of a data-parallel run cannot go on together: one failed, has ended, or differs."""
