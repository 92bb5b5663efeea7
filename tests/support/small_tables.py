"""Write a small table of a paper, and make its runs in this process."""

import concurrent.futures
import json
from concurrent.futures.process import BrokenProcessPool

TABLE = """
title = "A small table"
source = "Nobody (2026), Table 0"
claim = "Adam is better."
seeds = 2
evaluations = 2
quick = { rows = ["adam"] }

[settings]
data = "digits"
model = "linear"
batch_size = 64
steps = 4
delta = 1e-5

[columns.low]
title = "σ = 1"
settings = { noise_multiplier = 1.0 }
published_epsilon = 1.5

[columns.high]
title = "σ = 2"
settings = { noise_multiplier = 2.0 }

[rows.sgd]
title = "DP-SGD"
settings = { rule = "sgd", rule_options = { lr = 0.5 } }
published = [[80.5, 0.1], []]

[rows.adam]
title = "DP-Adam"
form = "corrected"
settings = { rule = "adam", rule_options = { lr = 0.01 } }
columns.high = { rule_options = { lr = 0.02 } }
"""


def write(folder, text=TABLE):
    """Writes the table paper/table below `folder`, and returns the path of its TOML file."""
    path = folder / "experiments" / "paper" / "table.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class Pool:
    """Stands for a pool of processes, but runs in this one, since a new process takes seconds to start.

    The first `dying` calls fail as if their process had died.
    """

    _processes = None
    dying = 0

    def __init__(self, *arguments, **options):
        self.left = self.dying

    def submit(self, function, *arguments):
        future = concurrent.futures.Future()
        self.left -= 1
        if self.left >= 0:
            future.set_exception(BrokenProcessPool())
            return future
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, **options):
        pass


class DyingPool(Pool):
    dying = 1


def without_seconds(lines):
    """Returns lines of results in a fixed order, without the seconds that the runs took."""
    return sorted(({**line, "seconds": 0} for line in lines), key=json.dumps)
