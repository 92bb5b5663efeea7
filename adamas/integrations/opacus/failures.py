"""Hides the texts of errors within the private step, which can quote values of records."""

import dis
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import adamas
from adamas.engines.bookkeeping.counts import user_line
from adamas.errors import UnsupportedError

_PACKAGE = str(Path(adamas.__file__).parent)

T = TypeVar("T")


def concealed(compute: Callable[[], T], line: Callable[[], str | None], doing: str) -> T:
    """Computes on private data; an error shows its type and a line, and nothing else.

    Errors that `adamas` itself raises say nothing about values, and keep their text.

    Args:
        compute: What to compute.
        line: Returns the line of the user's call that runs; None for the current line of the loop.
        doing: What fails, as the subject of a sentence.
    """
    own: Exception | None = None
    try:
        return compute()
    except Exception as error:
        kind = _foreign(error)
        if kind is None:
            own = error
    # Out of the except block: an error raised within it would keep the original in its __context__.
    if own is not None:
        own.__cause__ = own.__context__ = None
        raise own.with_traceback(None) from None
    raise UnsupportedError(
        f"{doing} raised {kind} at {line() or user_line()}. Its text is left out: it can quote values of a "
        "record, which no noise covers. Nothing was released. Try data set, module and loss on public data "
        "of the same form, and look for labels out of range and records of another shape before training."
    ) from None


def told(refusal: Exception) -> str:
    """Returns the text of a refusal, or the type of the error that it quotes."""
    kind = _foreign(refusal)
    return str(refusal) if kind is None else f"it raised {kind}."


def _foreign(error: BaseException) -> str | None:
    """Returns the type of the other code's error whose text an error has; None if its text is ours."""
    if not _raised_here(error):
        return type(error).__name__
    text = str(error)
    for other in _before(error):
        if not _raised_here(other) and any(line in text for line in str(other).splitlines() if line):
            return type(other).__name__
    return None


def _before(error: BaseException) -> Iterator[BaseException]:
    """Yields the errors that were being handled when an error was raised, and their causes."""
    seen: set[int] = {id(error)}
    todo = [error.__cause__, error.__context__]
    while todo:
        other = todo.pop()
        if other is not None and id(other) not in seen:
            seen.add(id(other))
            yield other
            todo += [other.__cause__, other.__context__]


def _raised_here(error: BaseException) -> bool:
    """Tells whether a `raise` of this package made an error, and not a function of torch that it calls."""
    place = error.__traceback__
    if place is None:
        return False
    while place.tb_next is not None:
        place = place.tb_next
    code = place.tb_frame.f_code
    opcode = dis.opname[code.co_code[place.tb_lasti]]
    return code.co_filename.startswith(_PACKAGE) and opcode == "RAISE_VARARGS"
