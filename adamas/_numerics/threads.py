"""Work that torch's number of threads do together, the calling thread among them.

What runs in them must let go of Python's lock, as NumPy's functions and compiled loops do, and must not call
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
    """Makes calls, each thread a part of them of the same length, and at least `least` long.

    The calling thread does its part and does not wait for the others, which are returned.
    """
    count = sum(n for _, _, n in calls)
    shares = max(min(torch.get_num_threads(), count // least), 1)
    edges = [count * i // shares for i in range(shares + 1)]
    return _together(lambda share: _make(calls, *share), list(pairwise(edges)))


def share_blocks(blocks: int, work: Callable[[int], None]) -> None:
    """Deals the work on blocks 0, 1, ... out to the threads, and waits for them."""
    threads = min(torch.get_num_threads(), max(1, blocks))

    def share(first: int) -> None:
        for block in range(first, blocks, threads):
            work(block)

    for other in _together(share, range(threads)):
        other.result()


def _together(work: Callable[[Any], None], shares: Any) -> "list[Future[None]]":
    """Does the first share, while other threads do the others."""
    first, *rest = shares
    others = [_workers(torch.get_num_threads() - 1).submit(work, share) for share in rest]
    try:
        work(first)
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
