"""Loops that Numba compiles where it is installed, and threads that share them out.

Without Numba, or with one that does not work, the rules do the same with torch's functions.
"""

import contextlib
import functools
import importlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch

numba: Any = None  # missing or broken: what is `compiled` is then plain Python, and not used
with contextlib.suppress(Exception):
    numba = importlib.import_module("numba")

Array: TypeAlias = np.ndarray


def compiled(function: Callable[..., Any]) -> Any:
    """The function for Numba, with the rules of IEEE 754; compiled when it is first called."""
    if numba is None:
        return function
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # there is no folder to write to
        return numba.njit(**options)(function)


Call: TypeAlias = tuple[Callable[..., None], tuple[Any, ...], int]
"""A compiled function, its arguments, and n; it takes `(*arguments, start, stop)` for parts of `range(n)`."""


def share_out(calls: list[Call], least: int) -> "list[Future[None]]":
    """Makes calls, each thread of torch's a part of them of the same length, and at least `least` long.

    The calling thread does its part and does not wait for the others, which are returned.
    """
    count = sum(n for _, _, n in calls)
    threads = torch.get_num_threads()
    shares = max(min(threads, count // least), 1)
    edges = [count * i // shares for i in range(shares + 1)]
    others = [_workers(threads - 1).submit(_make, calls, *share) for share in pairwise(edges[1:])]
    try:
        _make(calls, *edges[:2])
    except BaseException:
        wait(others)
        raise
    return others


def _make(calls: list[Call], start: int, stop: int) -> None:
    """The part of the calls from `start` to `stop`, as if their ranges were one."""
    for function, arguments, n in calls:
        if start < n and stop > 0:
            function(*arguments, max(start, 0), min(stop, n))
        start, stop = start - n, stop - n


@functools.lru_cache(maxsize=1)
def _workers(count: int) -> ThreadPoolExecutor:
    """Threads besides the calling one, started when there is work for them."""
    return ThreadPoolExecutor(count, thread_name_prefix="adamas")


if hasattr(os, "register_at_fork"):  # threads are not copied to a child
    os.register_at_fork(after_in_child=_workers.cache_clear)
