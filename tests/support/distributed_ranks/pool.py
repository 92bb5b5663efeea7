"""Two processes that run functions, with a gloo group between them."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

from tests.support.processes import fork_server

WORLD = 2


class Pool:
    """Two ranks that wait for functions to run."""

    def __init__(self, folder):
        context = fork_server()
        self._pipes, self._processes = [], []
        for rank in range(WORLD):
            mine, its = context.Pipe()
            process = context.Process(target=_serve, args=(its, rank, str(folder / "store")))
            process.start()
            its.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def __call__(self, function, *args, limit=600.0, **kwargs):
        """Returns the results of `function(rank, ...)` on rank 0 and rank 1.

        An exception gives a `Failure`, and a process that has ended gives "ended".
        """
        for pipe in self._pipes:
            pipe.send((function, args, kwargs))
        results = []
        end = time.monotonic() + limit
        for pipe in self._pipes:
            try:
                if not pipe.poll(max(0.0, end - time.monotonic())):
                    raise TimeoutError(f"no result of {function.__name__} after {limit} seconds")
                results.append(pipe.recv())
            except EOFError:
                results.append("ended")
        return results

    def close(self):
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


class Failure:
    """An exception that a rank raised."""

    def __init__(self, error):
        self.kind, self.text = type(error).__name__, str(error)

    def __repr__(self):
        return f"{self.kind}: {self.text}"


def _serve(pipe, rank, store):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD, timeout=timedelta(minutes=5)
    )
    while True:
        try:
            function, args, kwargs = pipe.recv()
        except EOFError:
            return
        torch.manual_seed(rank)  # nothing that the ranks share may come from the global generator
        try:
            pipe.send(function(rank, *args, **kwargs))
        except Exception as error:
            pipe.send(Failure(error))
