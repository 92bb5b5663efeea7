"""Shows the progress of a run: a bar on a terminal, nothing elsewhere."""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from adamas._words import rounded_up

# Epsilon is a bound that is cheap at most steps. It need not change faster than one can read.
_SECONDS_BETWEEN_EPSILONS = 0.5


@contextmanager
def progress_bar(
    enabled: bool | None, done: int, total: int, epsilon: Callable[[], float], *, private: bool = True
) -> Iterator[Callable[[], None]]:
    """Shows steps, time and epsilon; yields a function that advances by one step.

    Args:
        enabled: None shows the bar if standard error is a terminal and `CI` is not set.
        done: Steps that are already done.
        total: Steps in all.
        epsilon: Returns the epsilon spent so far, or a bound on it.
        private: False warns that the run is not private.
    """
    if enabled is None:
        enabled = sys.stderr.isatty() and not os.environ.get("CI")
    if not enabled:
        yield _nothing
        return
    columns = (
        TextColumn("private steps" if private else "[bold red]steps, NOT PRIVATE[/]"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[spent]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as display:
        task = display.add_task("", total=total, completed=done, spent="")
        asked = -math.inf

        def advance() -> None:
            nonlocal asked, done
            display.advance(task)
            done += 1
            if done == total or time.monotonic() - asked > _SECONDS_BETWEEN_EPSILONS:
                display.update(task, spent=f"ε = {rounded_up(epsilon(), digits=3)}")
                asked = time.monotonic()

        yield advance


@contextmanager
def task_bar(enabled: bool | None, words: str, total: int) -> Iterator[Callable[[], None]]:
    """Shows how much of a task is done; yields a function that advances by one.

    Args:
        enabled: See `progress_bar`.
        words: The name of the task.
        total: How many items there are.
    """
    if enabled is None:
        enabled = sys.stderr.isatty() and not os.environ.get("CI")
    if not enabled:
        yield _nothing
        return
    columns = (
        TextColumn(words),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as display:
        task = display.add_task("", total=total)
        yield lambda: display.advance(task)


def _nothing() -> None:
    pass
