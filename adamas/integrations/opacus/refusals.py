"""Refuses operations that a loop cannot do on deferred values."""

from typing import NoReturn

from adamas.engines.bookkeeping.counts import user_line
from adamas.errors import UnsupportedError


def refuse_value(use: str) -> NoReturn:
    """Raises where the loop asks for a value of private data."""
    raise UnsupportedError(
        f"Expected no use of the values of a batch in the loop, got {use} ({user_line()}). They are "
        "private, and so are losses, accuracies and sizes of batches. Leave it out, or compute it on public "
        "data: the module takes plain tensors as before."
    )


def refuse_in_place() -> NoReturn:
    """Raises for a change in place."""
    raise UnsupportedError(
        f"Expected no change in place of a value of the batch ({user_line()}): it has no value yet. Use "
        "functions that return a new tensor, without inplace=True and out=."
    )


def refuse_parts() -> NoReturn:
    """Raises for an iteration."""
    raise UnsupportedError(
        f"Expected no iteration over a value of the batch ({user_line()}): the number of its parts is not "
        "known before the private step. Take its parts by their numbers, as in output[0]."
    )


def refuse_mixing() -> NoReturn:
    """Raises where a mean over the batch enters the values of examples."""
    raise UnsupportedError(
        f"Expected values of examples, got their mean or sum ({user_line()}), which mixes them: one record "
        "would change the gradients of all others. Average over the axes of one example only, and over all "
        "axes for the final loss."
    )


def refuse_of_loss(use: str) -> NoReturn:
    """Raises for a function of the mean loss that is not linear."""
    raise UnsupportedError(
        f"Expected only +, -, *, / and backward() of a loss, got {use} ({user_line()}): the private step "
        "needs the loss of each example. Compute with the losses of the examples (reduction='none'), and "
        "take their mean last."
    )
