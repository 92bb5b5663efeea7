"""Shares work among as many threads as torch uses, the calling thread included.

The work must release Python's global lock, as NumPy's functions and compiled loops do. It must not call
torch's functions on large tensors: each thread would start a team of its own.
"""

import functools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from typing import Any, TypeAlias

import torch

Call: TypeAlias = tuple[Callable[..., None], tuple[Any, ...], int]
"""A function, its arguments, and n; it takes `(*arguments, start, stop)` for parts of `range(n)`."""


def share_out(calls: list[Call], least: int) -> "list[Future[None]]":
    """Splits the calls evenly across threads, at least `least` items each.

    The calling thread does its own part and returns the futures of the others without waiting for them.
    """
    count = sum(n for _, _, n in calls)
    shares = max(min(torch.get_num_threads(), count // least), 1)
    edges = [count * i // shares for i in range(shares + 1)]
    return _together(lambda share: _make(calls, *share), list(pairwise(edges)))


def share_blocks(blocks: int, work: Callable[[int], None]) -> None:
    """Calls `work` for blocks 0, 1, ... on all threads, and waits for them."""
    threads = min(torch.get_num_threads(), max(1, blocks))

    def share(first: int) -> None:
        for block in range(first, blocks, threads):
            work(block)

    for other in _together(share, range(threads)):
        other.result()


def _together(work: Callable[[Any], None], shares: Any) -> "list[Future[None]]":
    """Starts all shares but the first on other threads, does the first one here, and returns the rest."""
    first, *rest = shares
    others = [_workers(torch.get_num_threads() - 1).submit(work, share) for share in rest]
    try:
        work(first)
    except BaseException:
        wait(others)
        raise
    return others


def _make(calls: list[Call], start: int, stop: int) -> None:
    """Makes the calls from item `start` to `stop`, counted over the ranges of all calls."""
    for function, arguments, n in calls:
        if start < n and stop > 0:
            function(*arguments, max(start, 0), min(stop, n))
        start, stop = start - n, stop - n


@functools.lru_cache(maxsize=1)
def _workers(count: int) -> ThreadPoolExecutor:
    """Returns a pool of threads besides the calling one. They start when there is work."""
    return ThreadPoolExecutor(count, thread_name_prefix="adamas")


if hasattr(os, "register_at_fork"):  # a child has no copies of the threads
    os.register_at_fork(after_in_child=_workers.cache_clear)
