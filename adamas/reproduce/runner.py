"""Makes the missing runs of a table, several in parallel, and keeps each as soon as it is finished."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from adamas import _validate
from adamas.reproduce.one_run import THREADS, finished_run
from adamas.reproduce.results import Line, Results
from adamas.reproduce.table import Cell

# glibc gives large blocks back to the system when they are freed, and the next step asks for them again: that
# costs a noticeable share of a run. Other systems ignore these.
_KEPT_MEMORY = {
    "MALLOC_TOP_PAD_": str(1 << 28),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
}


@dataclass(frozen=True)
class Progress:
    """Progress of the runs of a table.

    Attributes:
        done: Finished runs, earlier ones included.
        total: Runs in all.
        left: Expected seconds until all are finished; None before the first one is.
        last: The run that was just finished.
    """

    done: int
    total: int
    left: float | None
    last: Line | None


def reproduce(
    results: Results,
    *,
    rows: Iterable[str] | None = None,
    columns: Iterable[str] | None = None,
    seeds: int | None = None,
    jobs: int = 1,
    progress: Callable[[Progress], None] = lambda _: None,
) -> None:
    """Makes the missing runs of a table.

    Args:
        results: Where finished runs are kept, open in a `with` statement.
        rows: Names of rows; all if not given.
        columns: Names of columns; all if not given.
        seeds: Runs of each cell; as the table says if not given.
        jobs: Runs in parallel, one thread each.
        progress: Called at the start and after each finished run.

    Raises:
        RuntimeError: If runs fail, after all others were made; the message names them. Finished runs are
            kept, and the next call goes on there.

    A script that calls it needs `if __name__ == "__main__":`, since the runs are processes of their own.
    """
    table = results.table
    _validate.count(jobs=jobs)
    if seeds is not None:
        _validate.count(seeds=seeds)
    cells = table.cells(rows, columns)
    wanted = [(cell, seed) for seed in range(seeds or table.seeds) for cell in cells]
    missing = [(cell, seed) for cell, seed in wanted if not results.find(cell, seed)]
    done = len(wanted) - len(missing)
    progress(Progress(done, len(wanted), _left(results, missing, jobs), None))
    if not missing:
        return
    pool = ProcessPoolExecutor(
        min(jobs, len(missing)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(os.getpid(),),
    )
    running: dict[Future[Line], tuple[Cell, int]] = {}
    queue = list(missing)
    failures: list[str] = []
    try:
        while queue or running:
            while queue and len(running) < jobs:
                cell, seed = queue.pop(0)
                settings = table.cell_settings(cell, seed)
                with _environment(_KEPT_MEMORY):  # a process may start here
                    future = pool.submit(finished_run, settings, table.evaluations, table.histograms)
                running[future] = (cell, seed)
            finished = wait(running, return_when=FIRST_COMPLETED).done
            # Those that succeeded come first: nothing that follows can lose them.
            for future in sorted(finished, key=lambda one: one.exception() is not None):
                cell, seed = running.pop(future)
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    raise RuntimeError(
                        "A process of the runs ended before its time: for want of memory, or because a "
                        'script calls this without if __name__ == "__main__". Finished runs are kept; call '
                        "again, perhaps with fewer --jobs."
                    ) from error
                if error is not None:
                    name = f"row {cell.row!r}, column {cell.column!r}, seed {seed}"
                    failures.append(f"The run of {name} failed: {error}")
                    continue
                line = {"row": cell.row, "column": cell.column, "seed": seed} | future.result()
                results.add(line)
                done += 1
                left = _left(results, [*queue, *running.values()], jobs)
                progress(Progress(done, len(wanted), left, line))
    finally:
        for process in list((pool._processes or {}).values()):
            process.kill()  # only unfinished runs are left: nothing of them is kept
        pool.shutdown(wait=True, cancel_futures=True)
    if failures:
        raise RuntimeError(" ".join([*failures, "All other runs are finished and kept."]))


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for processes that start within, unless the user has set them."""
    added = values.keys() - os.environ.keys()
    os.environ.update({name: values[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _left(results: Results, missing: list[tuple[Cell, int]], jobs: int) -> float | None:
    """Estimates the seconds left: a run takes as long as others of its row, or as all others."""
    if not results.lines:
        return None
    everything = [line["seconds"] for line in results.lines]
    total = 0.0
    for cell, _ in missing:
        same = [line["seconds"] for line in results.lines if line["row"] == cell.row] or everything
        total += sum(same) / len(same)
    return total / jobs


def _start_worker(parent: int) -> None:
    """Of a process of its own."""
    torch.set_num_threads(THREADS)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)  # the parent was killed, and no longer waits for this run

    threading.Thread(target=watch, daemon=True).start()
