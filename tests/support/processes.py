"""Starts processes, for tests that share files between runs or kill them.

A forked copy of a process with running threads may hang, and a fresh interpreter spends seconds on imports.
A fork server avoids both: it imports `PRELOADED` once, without starting a thread, and forks from there.
"""

import multiprocessing
from multiprocessing.context import ForkServerContext

PRELOADED = ["torch._dynamo", "adamas", "pytest", "hypothesis", "tests.support.small_runs"]


def fork_server() -> ForkServerContext:
    """Returns the multiprocessing context of the fork server. A test process has only one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context
